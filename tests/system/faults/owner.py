"""``python -P -m tests.system.faults.owner``: ``soong orchestrator`` with the faults that the environment names.

FAULT_CALLBACK   a file: a callback in this process answers every session, and leaves a line there whenever it is asked
FAULT_CHOICE     what it answers; allow_once when not set
"""

import os
import sys
from pathlib import Path

import tests.system.faults.plugin  # noqa: F401  # installs them
from soong.orchestrator.approvals.broker import ApprovalBroker
from soong.orchestrator.approvals.session_approvals import SessionApprovals
from soong.orchestrator.cli.main import main
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.system.faults.append_tool import note
from tests.system.faults.borders import reach


def install_callback(asked: Path, choice: Choice) -> None:
    """Let every desk of this process have a callback, as one that embeds an owner attaches it."""
    original = ApprovalBroker._of  # an owner on the command line offers no other place for a callback

    async def callback(request: PermissionRequest) -> PermissionDecision:
        identity = request.identity
        note(asked, {"request": request.id, "run": identity.run_id, "role": str(identity.role), "pid": os.getpid()})
        reach("callback:asked")
        return PermissionDecision(choice, reason="seen")

    def of(self: ApprovalBroker, session_id: str) -> SessionApprovals:
        broker = original(self, session_id)
        broker.callback = broker.callback or callback
        return broker

    ApprovalBroker._of = of  # type: ignore[method-assign]  # it does not come back


if __name__ == "__main__":
    if file := os.environ.get("FAULT_CALLBACK"):
        install_callback(Path(file), Choice(os.environ.get("FAULT_CHOICE", "allow_once")))
    sys.argv[1:] = ["orchestrator"]
    main()
