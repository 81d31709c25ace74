"""What clients ask of a session's owner: pause, resume, cancel, retry, close. The owner alone writes the outcome."""

from dataclasses import dataclass
from typing import assert_never

from shared.clock import Clock
from shared.errors import ConflictError, NotOwnerError, UsageError
from shared.runs.store import RunStore
from shared.sessions.session import Command, CommandKind, Ownership
from shared.sessions.store import SessionStore
from shared.tasks.expansion import next_attempt
from shared.tasks.status import StepStatus
from shared.tasks.step import StepKind
from shared.tasks.store import TaskStore
from shared.wire.ring import Ring

RETRIED = frozenset({StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED})


@dataclass(slots=True)
class Commands:
    """Carries out a session's open commands in the order they came; a refusal is told to the client, never lost."""

    sessions: SessionStore
    tasks: TaskStore
    runs: RunStore
    ring: Ring
    clock: Clock

    async def carry_out(self, ownership: Ownership) -> bool:
        """Carry out what is open; say whether the session was closed by it."""
        commands = await self.sessions.take_commands(ownership)
        for command in commands:
            try:
                await self._do(ownership, command)
            except NotOwnerError:
                raise  # the successor carries it out
            except (UsageError, ConflictError) as error:
                await self.sessions.end_command(command.id, refusal=str(error))
            else:
                await self.sessions.end_command(command.id)
        if commands:
            await self.ring.wake_session(ownership.session_id)
        return any(command.kind is CommandKind.CLOSE for command in commands)

    async def _do(self, ownership: Ownership, command: Command) -> None:
        now_us = self.clock.now_us()
        reason = str(command.detail.get("reason") or f"asked for by {command.principal}")
        match command.kind:
            case CommandKind.PAUSE:
                await self._wake(await self.tasks.pause_task(ownership, command.subject, reason=reason, now_us=now_us))
            case CommandKind.CANCEL:
                await self._wake(await self.tasks.cancel_task(ownership, command.subject, reason=reason, now_us=now_us))
            case CommandKind.RESUME:
                await self.tasks.resume_task(ownership, command.subject, now_us=now_us)
            case CommandKind.RETRY:
                await self._retry(ownership, command.subject, now_us)
            case CommandKind.CLOSE:
                await self.sessions.close_session(ownership)
            case other:
                assert_never(other)

    async def _retry(self, ownership: Ownership, task_id: str, now_us: int) -> None:
        again = [
            next_attempt(step, await self.runs.run(step.run_id))
            for step in await self.tasks.steps(task_id)
            if step.status in RETRIED and step.kind is not StepKind.MAP
        ]
        await self.tasks.retry_task(ownership, task_id, again, now_us=now_us)

    async def _wake(self, worker_ids: frozenset[str]) -> None:
        for worker_id in sorted(worker_ids):
            await self.ring.wake_worker(worker_id)
