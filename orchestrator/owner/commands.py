"""Commands of clients to a session's owner: pause, cancel, retry, change, end a task and more. It alone writes it.

A command that must not run twice (a change, a retry, an end) is carried out and marked as done in one transaction: an
owner that dies in between leaves nothing for its successor to repeat.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, LimitExceededError, NotOwnerError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.runs.store import CallAbort, RunStore, calls_under_way
from soong.shared.engine.sessions.session import Command, CommandKind, Ownership, RefusalType, Session, SessionStore
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.growth import read_update
from soong.shared.engine.tasks.new_tasks import next_attempt
from soong.shared.engine.tasks.planner import SAYS_WHAT_TO_DO, Planner, read_dispatch
from soong.shared.engine.tasks.rerun import rerun
from soong.shared.engine.tasks.spec import TaskEvent, TaskKind
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.engine.wire.notifier import Notifier, project_needed


class SessionMemory(Protocol):
    """The memory job of sessions (:mod:`soong.orchestrator.memory.job`)."""

    async def begin(self, ownership: Ownership) -> bool:
        """Make a job for it, if there is something to remember; return whether one is open, which closes it."""

    async def ended(self, ownership: Ownership, task_id: str) -> bool:
        """Close the session of a job that has ended; return whether the task was one."""

    def is_job(self, run: Run) -> bool:
        """Return whether a run is a job that has ended well."""

    async def keep(self, run_id: str, /) -> None:
        """Keep the candidates of a job. Raises: UnavailableError, OSError, ForeignEntryError."""


@dataclass(slots=True)
class Commands:
    """Carries out a session's open commands in the order they came; a refusal is reported to the client, never lost."""

    sessions: SessionStore
    tasks: TaskStore
    runs: RunStore
    notifier: Notifier
    clock: Clock
    planner: Planner = field(default_factory=Planner)
    memory: SessionMemory | None = None

    async def carry_out(self, ownership: Ownership) -> bool:
        """Carry out what is open; say whether the session was closed by it."""
        commands = await self.sessions.take_commands(ownership)
        for command in commands:
            try:
                await self._do(ownership, command)
            except NotOwnerError:
                raise  # the successor carries it out
            except LimitExceededError as error:
                await self.sessions.end_command(command.id, refusal=str(error), refusal_type=RefusalType.LIMIT_EXCEEDED)
            except (UsageError, ConflictError) as error:
                await self.sessions.end_command(command.id, refusal=str(error))
            else:
                await self.sessions.end_command(command.id)
        if commands:
            await self.notifier.notify_session(ownership.session_id)
        return any(command.kind is CommandKind.CLOSE for command in commands)

    async def _do(self, ownership: Ownership, command: Command) -> None:
        now_us = self.clock.now_us()
        reason = str(command.detail.get("reason") or f"asked for by {command.principal}")
        task_id = command.subject
        how: dict[str, Any] = {"reason": reason, "now_us": now_us, "command_id": command.id}
        match command.kind:
            case CommandKind.PAUSE | CommandKind.RESUME | CommandKind.CANCEL:
                await self._steer_all(ownership, command, reason, now_us)
            case CommandKind.ABORT:
                await self._abort(ownership, command, now_us)
            case CommandKind.RETRY:
                await self._retry(ownership, command, now_us)
            case CommandKind.UPDATE:
                await self._update(ownership, command, now_us)
            case CommandKind.COMPLETE:
                await self._wake(await self.tasks.end_task(ownership, task_id, TaskEvent.COMPLETE, **how))
            case CommandKind.FAIL:
                await self._wake(await self.tasks.end_task(ownership, task_id, TaskEvent.FAIL, **how))
            case CommandKind.SPAWN:
                await self._spawn(ownership, command, now_us)
            case CommandKind.DISPATCH:
                await self._dispatch(ownership, command, now_us)
            case CommandKind.CLOSE:
                await self._close(ownership)
            case other:
                assert_never(other)

    async def _close(self, ownership: Ownership) -> None:
        """Close a session, now or when it is remembered."""
        if self.memory is None or not await self.memory.begin(ownership):
            await self.sessions.close_session(ownership)

    async def _steer_all(self, ownership: Ownership, command: Command, reason: str, now_us: int) -> None:
        """Pause, resume or cancel a task; of an ask, first those that its agent has made.

        And then those that it made meanwhile: from the change of its own task on, it makes none.
        """
        known = await self._planned(ownership, command.subject)
        for task_id in known:
            await self._steer(ownership, replace(command, id="", subject=task_id), reason, now_us)
        await self._steer(ownership, command, reason, now_us)
        for task_id in await self._planned(ownership, command.subject):
            if task_id not in known:
                await self._steer(ownership, replace(command, id="", subject=task_id), reason, now_us)

    async def _steer(self, ownership: Ownership, command: Command, reason: str, now_us: int) -> None:
        """Pause, resume or cancel one task."""
        task_id = command.subject
        if command.kind is CommandKind.PAUSE:
            await self._wake(await self.tasks.pause_task(ownership, task_id, reason=reason, now_us=now_us))
        elif command.kind is CommandKind.RESUME:
            # Nothing is dispatched by it: runs keep the principal that had them made.
            await self.tasks.resume_task(ownership, task_id, now_us=now_us)
        else:
            cancelled = self.tasks.cancel_task(ownership, task_id, reason=reason, now_us=now_us, command_id=command.id)
            await self._wake(await cancelled)

    async def _planned(self, ownership: Ownership, task_id: str) -> list[str]:
        """Return the open tasks that the agent of an ask has made: what is done to the ask is done to them first."""
        ask = await self.tasks.task(task_id)
        if ask.kind is not TaskKind.ASK:
            return []
        others = [await self.tasks.task(one.id) for one in await self.tasks.open_tasks(ownership) if one.id != task_id]
        parents = [(await self.runs.run(one.root_run_id)).identity.parent_run_id for one in others]
        return [one.id for one, parent in zip(others, parents, strict=True) if parent == ask.root_run_id]

    async def _abort(self, ownership: Ownership, command: Command, now_us: int) -> None:
        """Have the holder of a run end it with its calls, or one call alone. Raises: ConflictError, nothing to end."""
        run = await self.runs.run(str(command.detail["run"]))
        if run.identity.task_id != command.subject or run.status is not RunStatus.RUNNING:
            raise ConflictError(f"run {run.id} is {run.status}: no call of it is under way")
        found = await calls_under_way(self.runs, run.id)
        call_id, goes_on = str(command.detail.get("call") or ""), bool(command.detail.get("continue"))
        if goes_on and not call_id and len(found) == 1:
            (call_id,) = found
        if call_id not in found and (call_id or goes_on or not found):
            known = ", ".join(f"{one} ({tool})" for one, tool in found.items()) or "none"
            wanted = f"no call {call_id} of run {run.id} is under way" if call_id or not found else "name one call"
            raise ConflictError(f"{wanted}; those that are under way: {known}")
        abort = CallAbort(run.id, call_id if goes_on else "", str(command.detail.get("reason", "")))
        await self.tasks.abort_call(ownership, abort, now_us=now_us)
        if run.identity.step_key:
            await self._wake(frozenset({run.worker_id}))

    async def _retry(self, ownership: Ownership, command: Command, now_us: int) -> None:
        task_id = command.subject
        which = rerun(await self.tasks.steps(task_id), str(command.detail.get("from") or ""))
        last = [(step, await self.runs.run(step.run_id)) for step in which.attempts]
        model = str(command.detail.get("model") or "")
        origin = command.origin_in(await self.sessions.session(command.session_id))
        runs = [next_attempt(step, run, asked_by=origin, model=model) for step, run in last]
        await self.tasks.retry_task(
            ownership,
            task_id,
            runs,
            again=which.again,
            regrown=which.regrown,
            model=model,
            origin=origin,
            now_us=now_us,
            command_id=command.id,
        )

    async def _update(self, ownership: Ownership, command: Command, now_us: int) -> None:
        task = await self.tasks.task(command.subject)
        steps = await self.tasks.steps(task.id)
        session = await self.sessions.session(task.session_id)
        planner = await self.planner.at(session.project)
        update = read_update(command.detail, task, steps, planner.known)
        if update.steps or any(attempt.changes for attempt in update.attempts):
            _check_side(command, session, "adds steps to its tasks or changes them")
        tried = {attempt.step_id for attempt in update.attempts}
        last = {step.key: await self.runs.run(step.run_id) for step in steps if step.step_id in tried}
        root = (await self.runs.run(task.root_run_id)).identity
        change = planner.change(
            update, task, steps, root, last, project=_project(session), origin=command.origin_in(session)
        )
        workers = await self.tasks.update_task(ownership, task.id, change, now_us=now_us, command_id=command.id)
        await self._wake(workers)

    async def _spawn(self, ownership: Ownership, command: Command, now_us: int) -> None:
        """Insert a child of an ask's run, under that run; workers claim it as they claim every step."""
        ask = await self.tasks.task(command.subject)
        if ask.kind is not TaskKind.ASK:
            raise ConflictError(f"task {ask.id} is a plan: only the agent of an ask starts agents")
        session = await self.sessions.session(ask.session_id)
        _check_side(command, session, "starts agents in it")
        steps = await self.tasks.steps(ask.id)
        document: JsonObject = {"add_steps": [command.detail["step"]]}
        planner = await self.planner.at(session.project)
        role = Role(str(command.detail["role"]))
        if not role.is_child:
            raise ConflictError(f"a child is no {role.value} agent")
        known = replace(planner.known, may_name_orchestrator=role is Role.FORK)
        update = read_update(document, ask, steps, known)
        update = replace(update, steps=tuple(replace(step, role=role) for step in update.steps))
        root = (await self.runs.run(ask.root_run_id)).identity
        origin = command.origin_in(session)
        change = planner.change(update, ask, steps, root, {}, project=_project(session), origin=origin)
        if role is Role.FORK:
            change = await self._forked(change, ask.root_run_id, command)
        await self.tasks.update_task(ownership, ask.id, change, now_us=now_us, command_id=command.id)

    async def _forked(self, change: TaskChange, parent_run_id: str, command: Command) -> TaskChange:
        """Return the change with the parent's context for its one new run."""
        from soong.shared.agents.compaction import fork_nodes  # the model library, which only an owner of asks imports

        (step,) = change.steps
        assert step.run is not None
        nodes = await self.runs.nodes(parent_run_id)
        instructions = step.spec.instructions.replace("$${", "${")
        run = replace(step.run, nodes=fork_nodes(nodes, str(command.detail["call_id"]), instructions))
        return replace(change, steps=(replace(step, run=run),))

    async def _dispatch(self, ownership: Ownership, command: Command, now_us: int) -> None:
        """Insert the pull workers that are asked for; they are claimed as every other step is."""
        task = await self.tasks.task(command.subject)
        session = await self.sessions.session(task.session_id)
        steps = await self.tasks.steps(task.id)
        if SAYS_WHAT_TO_DO & command.detail.keys():
            _check_side(command, session, "gives pull workers tools, instructions, a script or an agent")
        planner = await self.planner.at(session.project)
        dispatch = read_dispatch(command.detail, task, planner.known)
        root = (await self.runs.run(task.root_run_id)).identity
        origin = command.origin_in(session)
        change = planner.pull_workers(dispatch, task, steps, root, project=_project(session), origin=origin)
        await self.tasks.update_task(ownership, task.id, change, now_us=now_us, command_id=command.id)

    async def _wake(self, worker_ids: frozenset[str]) -> None:
        for worker_id in sorted(worker_ids):
            await self.notifier.notify_worker(worker_id)


def _check_side(command: Command, session: Session, what: str) -> None:
    """Refuse a caller that defines what the runs of another's session do. Raises: ConflictError."""
    if command.principal != session.principal:
        raise ConflictError(
            f"only {session.principal!r}, whose session it is, {what}; this was asked by {command.principal!r} "
            "(SOONG_PRINCIPAL)"
        )


def _project(session: Session) -> tuple[str, ...]:
    return project_needed(session.project_id, session.project)
