"""``python -P -m tests.system.faults.owner``: ``soong orchestrator`` with the faults that the environment names."""

import asyncio
import os
import sys
from pathlib import Path

import tests.system.faults.plugin  # noqa: F401  # installs them
from soong.orchestrator.approvals.remote_responder import RemoteResponder
from soong.orchestrator.cli.main import main
from soong.orchestrator.owner.service import Orchestrator
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.system.faults.append_tool import note
from tests.system.faults.borders import reach


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
        responder = RemoteResponder(
            parts.store, parts.notifier, parts.subscriber, "", "local", "sdk", callback, self.settings
        )
        responders.append(asyncio.get_running_loop().create_task(responder.run()))

    Orchestrator.start = start  # type: ignore[method-assign]  # it does not come back


if __name__ == "__main__":
    if file := os.environ.get("FAULT_CALLBACK"):
        install_callback(Path(file), Choice(os.environ.get("FAULT_CHOICE", "allow_once")))
    sys.argv[1:] = ["orchestrator"]
    main()
