"""A service, a command that ends, and an innocent process that gets its id: run in a pid namespace of its own."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from soong.orchestrator.cli.plan_intake import PlanIntake
from soong.orchestrator.client.client import Client
from soong.orchestrator.embedded.control import ControlServer
from soong.orchestrator.embedded.plan_request import PlanRequest, environment_digest
from soong.shared.core.clock import SystemClock
from soong.shared.core.ids import new_id
from soong.shared.core.settings import load_settings
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore

COMMAND = """
import os, socket, sys
def ask(line):
    peer.sendall(line)
    print(peer.recv(65536).decode().strip(), flush=True)
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
ask(b'{"op": "hello"}\\n')
if sys.argv[2] == "passes" and os.fork():
    os._exit(0)
ask(sys.stdin.readline().encode())
"""


def request(folder: Path) -> bytes:
    place = str(folder)
    return PlanRequest(
        plan="title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n",
        source="plan.yaml",
        inputs={},
        project=place,
        cwd=place,
        approval_mode="deny",
        model=None,
        allow=(f"code.write_file:{place}",),
        budget=(),
        settings=(),
        max_concurrent=0,
        session_id=new_id("sess"),
        task_id=new_id("task"),
        is_json=True,
        is_detached=True,
        program="soong",
        home=place,
        environment=environment_digest(os.environ),
    ).line()


def started(path: Path, way: str) -> subprocess.Popen[bytes]:
    arguments = (sys.executable, "-c", COMMAND, str(path), way)
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
    process.stdin.flush()
    return bool(json.loads(await asyncio.to_thread(process.stdout.readline))["ok"])


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
    intake = PlanIntake(Client(store, board, board, SystemClock(), load_settings(agent_home=folder)))
    server = ControlServer(folder / "s", dict, lambda: None, lambda: False, plans=intake)
    await server.start()
    is_served = await answer_to(await command(server.path, "stays"), request(folder))
    passing = await command(server.path, "passes")
    is_gone_served = await answer_to(passing, request(folder))
    passing = await command(server.path, "passes")
    innocent = innocent_with(passing.pid)
    is_reused_served = await answer_to(passing, request(folder))
    innocent.kill()
    innocent.wait()
    await server.close()
    sys.stdout.write(json.dumps({"stays": is_served, "gone": is_gone_served, "reused": is_reused_served}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
