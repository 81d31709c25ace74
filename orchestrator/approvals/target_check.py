"""The target of a question as it is now, looked at from where the person is: has it changed since it was shown?

The call's own tool computes it, as the worker had it do before it asked. Whatever is found here only informs: the
worker holds a write to the state that was shown (``path_conflict``), whatever is checked in between.
"""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from soong.orchestrator.approvals.full_input import FullInput
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import call_foreign
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.scope import is_too_wide
from soong.shared.permissions.writable import writable_by_rule
from soong.shared.tools.definition import NO_PROGRESS, RunDirs, Target, ToolContext, ToolDefinition
from soong.shared.tools.results.normalize import failure_of


class TargetStatus(Value):
    """``is_changed`` is None where it cannot be determined here; ``note`` says why, or what has changed.

    ``preview`` is what the person would be shown now: a diff against the file as it is.
    """

    is_changed: bool | None
    note: str
    preview: str = ""


class TargetChecker(Value):
    """What is looked with: the tools that are known here, and where runs of this home work and may write."""

    tools: Sequence[ToolDefinition]
    runs_folder: Path
    write_roots: tuple[Path, ...] = ()
    """Those of the configuration, in addition to a run's own."""

    async def check(self, request: PermissionRequest, session: Session, whole: FullInput, host: str) -> TargetStatus:
        """Look at a question's target; ``host`` is where its run works ("" when no worker holds it)."""
        tool = next((tool for tool in self.tools if tool.name == request.tool), None)
        refusal = self._refusal(request, session, whole, host, tool)
        if refusal or tool is None or tool.target is None:
            return TargetStatus(None, refusal)
        context = self._context(request, session)
        try:
            target = await asyncio.to_thread(call_foreign, tool.target, context, whole.input)
        except Exception as error:  # noqa: BLE001  # whatever a target raises is how the call would end
            return TargetStatus(True, f"as things are now it would be refused: {failure_of(error).message}")
        return _compared(request, target)

    def _refusal(
        self, request: PermissionRequest, session: Session, whole: FullInput, host: str, tool: ToolDefinition | None
    ) -> str:
        """Say why it cannot be determined here; empty when it can."""
        if tool is None:
            return f"the tool {request.tool} is not known here, so its target is not looked at"
        if not request.precondition or tool.target is None:
            return "the call names nothing whose state could be compared"
        if host not in ("", socket.gethostname()) or not Path(session.project).is_dir():
            return f"the target is where the run works ({host or session.project}), not here"
        if not whole.is_complete:
            return "the input is not fully known, so its target is not looked at"
        return ""

    def _context(self, request: PermissionRequest, session: Session) -> ToolContext:
        run_dir = self.runs_folder / request.identity.run_id
        project, cwd = Path(session.project), Path(request.cwd or session.cwd)
        own = (project,) if is_too_wide(str(cwd), str(Path.home())) else (project, cwd)
        roots = (*own, run_dir / "workspace", run_dir / "deliverables", *self.write_roots)
        policy = _policy_of(session)
        by_rule = writable_by_rule(policy, self.tools)
        run_dirs = RunDirs(project, cwd, run_dir, roots, writable_by_rule=by_rule, read_roots=policy.read_folders)
        return ToolContext(request.identity, run_dirs, request.tool_call_id, "looked_at", 0, NO_PROGRESS)


def _policy_of(session: Session) -> Policy:
    try:
        return Policy.from_json(session.policy)
    except InvalidConfigError:  # the owner refuses whatever is asked under such a policy
        return Policy()


def _compared(request: PermissionRequest, target: Target) -> TargetStatus:
    if target.shown != request.shown:
        return TargetStatus(True, f"the target now leads to {target.shown}; a yes will not be used", target.preview)
    if target.precondition != request.precondition:
        note = "the target has changed since the question was asked; a yes ends as path_conflict, nothing is done"
        return TargetStatus(True, note, target.preview)
    return TargetStatus(False, "the target is as it was when the question was asked", target.preview)
