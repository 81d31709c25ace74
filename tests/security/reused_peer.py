"""A service, a command that ends, and an innocent process that gets its id: run in a pid namespace of its own."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from soong.orchestrator.client.client import Client
from soong.orchestrator.client.home_api import ENVIRONMENT_HEADER
from soong.orchestrator.embedded.control import environment_digest
from soong.orchestrator.http.server import serve_home
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.wire.bus import MemoryBus
from tests.model.memory.store import MemoryStore

COMMAND = """
import os, socket, sys
def ask(request):
    peer.sendall(request)
    status, size = replies.readline().split()[1].decode(), 0
    while line := replies.readline().strip():
        name, _, value = line.partition(b": ")
        size = int(value) if name == b"content-length" else size
    replies.read(size)
    print(status, flush=True)
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
replies = peer.makefile("rb")
ask(b'GET /v1/health HTTP/1.1\\r\\nhost: localhost\\r\\nsoong-environment: %s\\r\\n\\r\\n' % sys.argv[3].encode())
if sys.argv[2] == "passes" and os.fork():
    os._exit(0)
ask(sys.stdin.buffer.read())
"""
PLAN = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"


def request(folder: Path, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return a submission as it is sent to the socket of the home."""
    place = str(folder)
    body = {"plan": PLAN, "project": place, "approval_mode": "deny", "allow": [f"code.write_file:{place}"]}
    text = json.dumps(body).encode()
    head = (
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"{ENVIRONMENT_HEADER}: {environment_digest(environment)}\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def started(path: Path, way: str) -> subprocess.Popen[bytes]:
    arguments = (sys.executable, "-c", COMMAND, str(path), way, environment_digest(os.environ))
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def command(path: Path, way: str) -> subprocess.Popen[bytes]:
    """Start a command that has connected, been accepted, and has ended if it ``passes`` its connection on."""
    process = started(path, way)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    if way == "passes":
        await asyncio.to_thread(process.wait)
    return process


async def answer_to(process: subprocess.Popen[bytes], line: bytes) -> bool:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.close()
    return (await asyncio.to_thread(process.stdout.readline)).strip() == b"201"


def innocent_with(pid: int) -> subprocess.Popen[bytes]:
    while True:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), encoding="ascii")
        process = subprocess.Popen(("sleep", "60"))
        if process.pid == pid:
            return process
        process.kill()
        process.wait()


async def main(folder: Path) -> None:
    board, store = MemoryBus(), MemoryStore()
    client = Client(store, board, board, SystemClock(), load_settings(agent_home=folder))
    path, stop = folder / "s", asyncio.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    serving = asyncio.create_task(serve_home(client, listener, stop.wait))
    is_served = await answer_to(await command(path, "stays"), request(folder))
    passing = await command(path, "passes")
    is_gone_served = await answer_to(passing, request(folder))
    passing = await command(path, "passes")
    innocent = innocent_with(passing.pid)
    is_reused_served = await answer_to(passing, request(folder))
    innocent.kill()
    innocent.wait()
    stop.set()
    await serving
    sys.stdout.write(json.dumps({"stays": is_served, "gone": is_gone_served, "reused": is_reused_served}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
