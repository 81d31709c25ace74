"""A gateway that is not ours before a model server that is not ours: LiteLLM's proxy, with a key of its own."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.servers import free_port
from tests.waiting import blocking_looks

START_S = 90.0
HOST = "127.0.0.1"
KEY = "sk-gateway"


@contextmanager
def litellm_proxy(program: str, folder: Path, upstream: str, models: Sequence[str]) -> Iterator[str]:
    """Run it so that it asks ``upstream`` on OpenAI's chat wire for each of the models; yield its address."""
    port, config, log = free_port(), folder / "litellm.json", folder / "litellm.log"
    asked = {"model": "openai/gpt-5", "api_base": upstream, "api_key": "none"}
    listed = [{"model_name": model, "litellm_params": asked} for model in models]
    # JSON is YAML, which it reads.
    config.write_text(json.dumps({"model_list": listed, "general_settings": {"master_key": KEY}}))
    command = [program, "--config", str(config), "--host", HOST, "--port", str(port)]
    own = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder)}
    pipe = subprocess.STDOUT
    with log.open("w") as written, subprocess.Popen(command, env=own, stdout=written, stderr=pipe) as process:
        try:
            address = f"http://{HOST}:{port}"
            _wait(address, process, log)
            yield address
        finally:
            process.kill()


def environment(address: str, key: str = KEY) -> dict[str, str]:
    """Return the variables by which the providers' clients find it."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    return {"OPENAI_BASE_URL": f"{address}/v1", "ANTHROPIC_BASE_URL": address, **dict.fromkeys(keys, key)}


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in blocking_looks(START_S, lambda: f"LiteLLM's proxy listens: {log.read_text()[-3000:]}", 0.2):
        with suppress(httpx.TransportError):
            if httpx.get(f"{address}/health/liveliness", timeout=2, verify=False).is_success:
                return
        assert process.poll() is None, log.read_text()[-3000:]
