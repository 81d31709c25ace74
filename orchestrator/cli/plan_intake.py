"""Runs the plans that commands hand to a service, as a client in the service's own process.

A command gets no more than it could do by itself: it is a process of the same user, of no run (PER-13), with the same
root folder and mounts, whose environment would make the same rows. Any other, and whatever is wrong with a plan, is
refused without a reason: the command then is a client of its own, and finds the reason itself.
"""

import asyncio
import json
import os
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from soong.orchestrator.approvals.provenance import provenance_of, workers_here
from soong.orchestrator.cli.display import LineDisplay
from soong.orchestrator.cli.summary import text_of
from soong.orchestrator.cli.watch import close_session
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.orchestrator.client.outcome import TaskOutcome, outcome_of
from soong.orchestrator.client.program import called_as
from soong.orchestrator.client.submission import Ids, SessionTerms, Submission, submission
from soong.orchestrator.embedded.control import ControlReply, Reply, SocketPeer
from soong.orchestrator.embedded.plan_request import (
    MAX_REPLY_BYTES,
    NOT_SERVED,
    PlanRequest,
    environment_digest,
    request_of,
)
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.plan.kinds.agent import parse_settings
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.wire.notifier import Subscription

log = get_logger(__name__)

_SAME: Final = ("root", "ns/mnt", "ns/user")


class _RefusedError(Exception):
    """The command does better by itself; the text is for the log."""


class PlanIntake(Value):
    """Takes plans for the ``client`` of a service. See :class:`soong.orchestrator.embedded.control.PlanRunner`."""

    client: Client

    async def run(self, message: ControlReply, peer: SocketPeer | None, reply: Reply) -> None:
        """See :class:`soong.orchestrator.embedded.control.PlanRunner`."""
        try:
            request = request_of(message)
            await self._check(request, peer)
            client, prepared = await asyncio.to_thread(self._prepared, request)
        except (_RefusedError, SoongError, ValueError, OSError) as error:
            log.info("plan_left_to_its_command", reason=str(error))
            reply({"ok": False})
            return
        opening = asyncio.create_task(client.subscriber.subscribe_session(prepared.session.id))
        try:
            await client.submit(prepared.session, prepared.task, budget=prepared.budget)
        except BaseException as error:  # cancelled, too: what was opened is closed
            await _discard(opening)
            if isinstance(error, UnavailableError):
                return  # without a reply: it may be written all the same, and its command writes it again
            if not isinstance(error, SoongError):
                raise
            reply({"ok": False})
            return
        reply({"ok": True, "title": prepared.task.title})
        if request.is_detached:
            await _discard(opening)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timing.COMMAND_LIMIT_S):
                reply(await _end_of(client, request, opening))

    async def _check(self, request: PlanRequest, peer: SocketPeer | None) -> None:
        """Look whether the process at the other end would do the same. Raises: _RefusedError, OSError."""
        if Path(request.home) != self.client.settings.home:
            raise _RefusedError("its home is another")
        if environment_digest(os.environ) != request.environment or any(map(os.environ.get, NOT_SERVED)):
            raise _RefusedError("its environment is another")
        if peer is None or any(
            not os.path.samestat(*map(os.stat, (f"/proc/{peer.pid}/{of}", f"/proc/self/{of}"))) for of in _SAME
        ):
            raise _RefusedError("it sees other files")
        provenance = provenance_of(peer.pid, await workers_here(self.client.store.sessions))
        if provenance.run_process is not None or not provenance.processes or not peer.is_alive:
            raise _RefusedError("a run has started it, or it has ended")

    def _prepared(self, request: PlanRequest) -> tuple[Client, Submission]:
        """Read and check everything as a client does. Raises: SoongError, OSError, _RefusedError."""
        model = Settings.model_fields["model"].default if request.model is None else request.model
        most = request.max_concurrent or None
        settings = load_settings(agent_home=Path(request.home), model=model, max_concurrent_children_per_session=most)
        project = Path(request.project)
        catalogue = Catalogue.of(settings).at(project)
        plan = parse_plan(request.plan, request.source, catalogue.known())
        if plan.modules:
            raise _RefusedError("its plan has modules, which its command imports")
        terms = SessionTerms(
            project=project,
            cwd=Path(request.cwd),
            approval_mode=ApprovalMode(request.approval_mode),
            model=settings.model,
            allow=request.allow,
            principal=settings.principal,
            ids=Ids(request.session_id, request.task_id),
            budget=request.budget,
            settings=parse_settings(request.settings),
        )
        prepared = submission(plan, request.inputs, terms, catalogue, self.client.clock)
        return replace(self.client, settings=settings, closers=()), prepared


async def _end_of(client: Client, request: PlanRequest, opening: "asyncio.Task[Subscription]") -> ControlReply:
    """Follow a task to its end; return what its command tells."""
    view: TaskSnapshot | None = None
    async with aclosing(client.follow(request.task_id, new=opening)) as views:
        async for one in views:
            view = one
    assert view is not None
    outcome = await outcome_of(client.store, view, client.settings.runs)
    if view.task.status is TaskStatus.COMPLETED:
        await close_session(client, view.task)
    told: dict[str, Json] = {
        "lines": _lines_of(view),
        "result": _result_of(outcome, request),
        "exit_code": int(outcome.exit_code),
    }
    is_short = len(json.dumps(told)) < MAX_REPLY_BYTES
    return told if is_short else {"is_too_long": True}


def _lines_of(view: TaskSnapshot) -> list[str]:
    lines: list[str] = []
    LineDisplay(lines.append).show(view)
    return lines


def _result_of(outcome: TaskOutcome, request: PlanRequest) -> Json:
    """Return the JSON document, or the text, of a task that has ended."""
    if request.is_json:
        from soong.orchestrator.schemas.task import TaskResult

        value: Json = json.loads(json.dumps(TaskResult.of_outcome(outcome).model_dump(), default=str))
        return value
    with called_as(request.program):
        return text_of(outcome)


async def _discard(opening: "asyncio.Task[Subscription]") -> None:
    """Close a subscription that nobody needs any more."""
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await (await opening).close()
