"""A real model behind a real server for tests: llama.cpp with 135 million parameters."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
LINES_LIMIT = 2000


@contextmanager
def llama_server(python: str, context_tokens: int) -> Iterator[dict[str, str]]:
    """Run it by a Python that has its packages, and yield the variables by which the clients of its wires find it."""
    command = [python, str(HERE / "serve.py"), str(context_tokens), str(HERE / "chat.jinja")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield _environment(_address(iter(process.stdout)))
        finally:
            process.stdin.close()
            process.kill()


def _address(lines: Iterator[str]) -> str:
    for _, line in zip(range(LINES_LIMIT), lines, strict=False):
        if line.startswith("LISTENING "):
            return line.split()[1]
    raise AssertionError("the llama.cpp server ended before it listened")


def _environment(address: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "none",
        "OLLAMA_BASE_URL": f"{address}/v1",
        "OLLAMA_API_KEY": "none",
    }
