"""A second scripted server that is not ours: aimock, which speaks the wires of several providers on one port."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import blocking_looks

START_S = 20.0
HOST = "127.0.0.1"


@contextmanager
def aimock(program: str, folder: Path, fixtures: Sequence[Any], *options: str) -> Iterator[str]:
    """Run it with these fixtures and yield its address. A request that none of them fits fails."""
    file, log = folder / "fixtures.json", folder / "aimock.log"
    file.write_text(json.dumps({"fixtures": list(fixtures)}))
    command = [program, "-p", "0", "-h", HOST, "-f", str(file), "--strict", "--validate-on-load", *options]
    with log.open("w") as written, subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT) as process:
        try:
            yield _address(process, log)
        finally:
            process.kill()


def requests_of(address: str) -> list[dict[str, Any]]:
    """Return the requests that it has answered, oldest first."""
    found: list[dict[str, Any]] = httpx.get(f"{address}/__aimock/journal", timeout=10, verify=False).json()
    return found


def environment(address: str) -> dict[str, str]:
    """Return the variables by which the providers' clients find it."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "OLLAMA_API_KEY")
    return {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OLLAMA_BASE_URL": f"{address}/v1",
        "ANTHROPIC_BASE_URL": address,
        "GOOGLE_GEMINI_BASE_URL": address,
        **dict.fromkeys(keys, "none"),
    }


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    for _ in blocking_looks(START_S, lambda: f"aimock listens: {log.read_text()}"):
        if found := re.search(r"https?://[^\s:]+:(\d+)", log.read_text()):
            return f"http://{HOST}:{found[1]}"
        assert process.poll() is None, log.read_text()
    raise AssertionError  # looks end by an error
