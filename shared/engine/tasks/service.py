"""The one way by which the command line, programs and agents make tasks and ask things of them (DAG-01).

It owns nothing of a task: making one is an insert, everything else a command row that the session's owner carries out
(docs/decisions/0004). So all of them go through the same checks, and an answer is the owner's own word.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.errors import (
    ConflictError,
    EndedTaskError,
    LimitExceededError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from soong.shared.core.identity import Role, RunIdentity, new_id, step_id_of
from soong.shared.core.jsontext import EXPECTED, Json, JsonObject, dotted, faults
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.budgets import BudgetStore
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Command, CommandKind, RefusalType, SessionStore
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.new_tasks import check_total, new_task
from soong.shared.engine.tasks.plan.plan import Plan, bind_inputs
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.rerun import rerun
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.engine.wire.notifier import Notifier, Subscriber


class Ledger(Protocol):
    """The rows that the service reads and writes."""

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def tasks(self) -> TaskStore: ...

    @property
    def claims(self) -> ClaimStore: ...

    @property
    def runs(self) -> RunStore: ...

    @property
    def budgets(self) -> BudgetStore: ...


@dataclass(slots=True)
class TaskService:
    """One for each process that asks. ``planner`` is what its plans are checked against, ``principal`` who asks."""

    store: Ledger
    notifier: Notifier
    subscriber: Subscriber
    clock: Clock
    planner: Planner = field(default_factory=Planner)
    principal: str = "local"
    may_approve: bool = False
    """Whether the principal carries the right to approve; everyone who can open the database has it."""

    async def create(
        self,
        session_id: str,
        plan: Plan,
        inputs: Mapping[str, Json],
        *,
        agent: RunIdentity | None = None,
        model: str = "",
        task_id: str = "",
    ) -> Task:
        """Write a task into a session; ``agent`` is the run that plans it. With a ``task_id``, once.
        Raises: InvalidPlanError, an input is missing or wrong, or a step has neither model nor script;
        LimitExceededError, it has more steps than a run may have children; NotFoundError, there is no such session.
        """
        session = await self.store.sessions.session(session_id)
        planner = await self.planner.at(session.project)
        new = new_task(
            plan,
            bind_inputs(plan, inputs),
            session,
            surface_of=planner.surface_of,
            default_model=model or planner.default_model,
            now_us=self.clock.now_us(),
            task_id=task_id,
            agent=agent,
        )
        check_total(0, len(new.steps), planner.max_children)
        if not await self._stands(new.id):
            await self.store.tasks.create_task(replace(new, session_id=session_id))
        await self.notifier.notify_owners([session_id])
        return await self.store.tasks.task(new.id)

    async def _stands(self, task_id: str) -> bool:
        try:
            await self.store.tasks.task(task_id)
        except NotFoundError:
            return False
        return True

    # -- what is asked of a task's owner. All raise: ConflictError, its refusal; UnavailableError, no owner did it in
    # time: the command stands and is carried out by the next one. A command id makes repetitions one command.
    async def pause(self, task: Task, *, reason: str = "", limit_s: float = timing.PATIENCE_S) -> None:
        _check_open(task)
        await self.ask(CommandKind.PAUSE, task, {"reason": reason}, limit_s=limit_s)

    async def resume(self, task: Task, *, reason: str = "resumed", model: str = "") -> None:
        """Continue a paused task, or give the failed and cancelled steps of an ended one new runs, on another model.
        Raises: ConflictError when a model is named for a task that has not ended: its runs keep their models.
        """
        if model and not task.status.is_terminal:
            raise ConflictError(f"task {task.id} is {task.status}: only an ended task takes another model")
        match task.status:
            case TaskStatus.FAILED | TaskStatus.CANCELLED | TaskStatus.COMPLETED:
                await self.retry(task, reason=reason, model=model)
            case TaskStatus.PAUSED | TaskStatus.RUNNING:
                await self.ask(CommandKind.RESUME, task, {"reason": reason})

    async def retry(self, task: Task, *, from_step: str = "", reason: str = "", model: str = "") -> None:
        """Run what did not complete again; with ``from_step`` also that step and all that came of it.

        ``model`` replaces the model of the agent steps that run again; empty: each keeps its own.
        Raises: NotFoundError when there is no such step.
        """
        steps = await self.store.tasks.steps(task.id)
        if from_step and from_step not in {step.step_id for step in steps}:
            raise NotFoundError(f"step of task {task.id}", from_step)
        if task.status is TaskStatus.COMPLETED and not (
            from_step or any(not one.is_pull_worker for one in rerun(steps).attempts)
        ):
            raise ConflictError(f"task {task.id} is completed; name the step to run it again from")
        await self.ask(CommandKind.RETRY, task, {"reason": reason, "from": from_step, "model": model})

    async def cancel(self, task: Task, *, reason: str = "", command_id: str = "") -> None:
        if not command_id:  # a repeated command may have ended it
            _check_open(task)
        await self.ask(CommandKind.CANCEL, task, {"reason": reason}, command_id=command_id)

    async def abort(self, task: Task, run_id: str, call: str = "", *, reason: str = "", goes_on: bool = False) -> None:
        """End a run of the task with its calls, or where the agent ``goes_on`` one call alone (EXE-07)."""
        detail: JsonObject = {"run": run_id, "call": call, "reason": reason, "continue": goes_on}
        await self.ask(CommandKind.ABORT, task, detail)

    async def complete(self, task: Task, *, reason: str = "", command_id: str = "") -> None:
        """End a task all of whose steps have ended."""
        await self.ask(CommandKind.COMPLETE, task, {"reason": reason}, command_id=command_id)

    async def fail(self, task: Task, *, reason: str, command_id: str = "") -> None:
        """End a task as failed; its unfinished steps are cancelled."""
        await self.ask(CommandKind.FAIL, task, {"reason": reason}, command_id=command_id)

    async def update(self, task: Task, change: JsonObject, *, command_id: str = "") -> None:
        """Change a running task (its form: :mod:`soong.shared.engine.tasks.growth`)."""
        await self.ask(CommandKind.UPDATE, task, change, command_id=command_id)

    async def set_priority(self, task: Task, priority: int, steps: Sequence[str] = (), *, reason: str = "") -> None:
        """Change the priority of steps, higher first; of all that have not ended, where none is named."""
        _check_open(task)
        states = () if steps else await self.store.tasks.step_states(task.id)
        names = steps or [step_id_of(one.key) for one in states if not one.status.is_terminal]
        await self.update(task, {"priorities": dict.fromkeys(names, priority), "reason": reason})

    async def dispatch_worker(
        self,
        task: Task,
        *,
        count: int = 1,
        max_steps: int | None = None,
        agent: str = "",
        model: str = "",
        instructions: str = "",
        allowed_tools: Sequence[str] | None = None,
        script: str = "",
        pool: str = "",
        command_id: str = "",
    ) -> None:
        """Let ``count`` runs take the task's ready steps one by one, each at most ``max_steps`` (DAG-03).

        They take worker slots as every run does, and end when nothing is left for them to claim. ``allowed_tools`` are
        theirs in addition to the tools for steps. A refusal by the owner is a ConflictError with every problem.
        """
        detail: dict[str, Json] = {"count": count, "max_steps": max_steps, "agent": agent, "model": model}
        detail |= {"instructions": instructions, "script": script, "pool": pool}
        detail["allowed_tools"] = None if allowed_tools is None else list(allowed_tools)
        await self.ask(CommandKind.DISPATCH, task, detail, command_id=command_id)

    async def spawn(self, ask: Task, role: Role, step: JsonObject, *, call_id: str, command_id: str = "") -> None:
        """Start a child of an ask's run: ``step`` as a plan writes it, done by an agent of that role.

        ``call_id`` is the call of the run that asks for it, from which a fork starts.
        """
        detail: JsonObject = {"role": role.value, "step": step, "call_id": call_id}
        await self.ask(CommandKind.SPAWN, ask, detail, command_id=command_id)

    async def request_close(self, session_id: str) -> None:
        """Ask for :meth:`close_session` without waiting for it. Raises: UnavailableError."""
        await self._send(self._command(session_id, CommandKind.CLOSE, session_id, {}))

    async def close_session(self, session_id: str) -> None:
        """Let a session's owner look at it no more once its tasks have ended."""
        await self._ask(session_id, CommandKind.CLOSE, session_id, {})

    async def ask(
        self,
        kind: CommandKind,
        task: Task,
        detail: JsonObject,
        *,
        command_id: str = "",
        limit_s: float = timing.PATIENCE_S,
    ) -> None:
        """Ask the task's owner for something and wait until it is done. Raises UsageError for text of no use, too."""
        subject = task.session_id if kind is CommandKind.CLOSE else task.id
        await self._ask(task.session_id, kind, subject, detail, command_id=command_id, limit_s=limit_s)

    async def _ask(
        self,
        session_id: str,
        kind: CommandKind,
        subject: str,
        detail: JsonObject,
        *,
        command_id: str = "",
        limit_s: float = timing.PATIENCE_S,
    ) -> None:
        command = self._command(session_id, kind, subject, detail, command_id)
        subscription = await self.subscriber.subscribe_session(session_id)
        try:
            async with asyncio.timeout(limit_s):
                await self._send(command)
                while True:
                    asked, has_ended = await self.store.sessions.command(command.id)
                    if has_ended:
                        break
                    await subscription.wait(timing.LEAST_PAUSE_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"no orchestrator carried out {kind} of {subject} within {limit_s:g} s; it stays asked for"
            ) from error
        finally:
            await subscription.close()
        if asked.refusal:
            is_limit = asked.refusal_type is RefusalType.LIMIT_EXCEEDED
            raise LimitExceededError(asked.refusal) if is_limit else ConflictError(asked.refusal)

    def _command(
        self, session_id: str, kind: CommandKind, subject: str, detail: JsonObject, command_id: str = ""
    ) -> Command:
        for path, found in faults(detail):
            raise UsageError(f"{dotted(path)}: {found}; expected {EXPECTED}")
        return Command(
            command_id or new_id("cmd"),
            session_id,
            kind,
            subject,
            self.principal,
            self.clock.now_us(),
            {name: value for name, value in detail.items() if value not in ("", None)},
            may_approve=self.may_approve,
        )

    async def _send(self, command: Command) -> None:
        await self.store.sessions.send_command(command)
        await self.notifier.notify_owners([command.session_id])


def _check_open(task: Task) -> None:
    if task.status.is_terminal:
        raise EndedTaskError(task.id, task.status)
