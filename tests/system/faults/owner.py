"""``python -P -m tests.system.faults.owner``: ``soong orchestrator`` with the faults that the environment names."""

import asyncio
import os
import sys
from pathlib import Path

import tests.system.faults.plugin  # noqa: F401  # installs them
from soong.orchestrator.cli.main import main
from soong.orchestrator.client.client import Client
from soong.orchestrator.owner.service import Orchestrator
from soong.shared.core import timing
from soong.shared.core.timing import SystemClock
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest
from tests.answering import AnsweringProgram
from tests.system.faults.append_tool import note
from tests.system.faults.borders import reach


async def answer_all(client: Client, callback: PermissionCallback) -> None:
    """Answer for every session that asks, until cancelled."""
    answering: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for question in await client.store.consent.questions():
                session_id = question.request.identity.session_id
                if session_id not in answering:
                    answering[session_id] = asyncio.create_task(AnsweringProgram(client, session_id, callback).run())
            await asyncio.sleep(timing.POLL_PROCESS_S)
    finally:
        for task in answering.values():
            task.cancel()


def install_callback(asked: Path, choice: Choice) -> None:
    """Attach a responder in this process that answers for every session, and dies with it."""
    original = Orchestrator.start  # an owner on the command line offers no place for a callback
    responders: list[asyncio.Task[None]] = []

    async def callback(request: PermissionRequest) -> PermissionDecision:
        identity = request.identity
        note(asked, {"request": request.id, "run": identity.run_id, "role": str(identity.role), "pid": os.getpid()})
        reach("callback:asked")
        return PermissionDecision(choice, reason="seen")

    async def start(self: Orchestrator) -> None:
        await original(self)
        parts = self.parts
        client = Client(parts.store, parts.notifier, parts.subscriber, SystemClock(), self.settings)
        responders.append(asyncio.get_running_loop().create_task(answer_all(client, callback)))

    Orchestrator.start = start  # type: ignore[method-assign]  # it does not come back


if __name__ == "__main__":
    if file := os.environ.get("FAULT_CALLBACK"):
        install_callback(Path(file), Choice(os.environ.get("FAULT_CHOICE", "allow_once")))
    sys.argv[1:] = ["orchestrator"]
    main()
