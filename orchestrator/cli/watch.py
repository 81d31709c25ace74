"""Watching a task from a terminal: show it, answer its questions, pause it on Ctrl-C, survive the service's death."""

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from soong.orchestrator.cli.console import emit, one_line, output, say, visible
from soong.orchestrator.cli.display import Display, make_display
from soong.orchestrator.cli.ids import still_running_in
from soong.orchestrator.cli.narration import StepVoices, narrate
from soong.orchestrator.cli.summary import text_of
from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.orchestrator.client.outcome import ExitCode, TaskOutcome, outcome_of
from soong.orchestrator.client.program import program
from soong.orchestrator.client.stall_reasons import StallReasons
from soong.orchestrator.embedded.control import ShutdownState
from soong.orchestrator.embedded.starter import Attachment, attach, last_words
from soong.orchestrator.schemas.task import TaskResult
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.engine.tasks.status import TaskStatus

RESTARTS = 3


@dataclass(slots=True)
class LostLeases:
    """Compares each view of a task with the one before.

    What was lost before the first one is not said again, unless the task is new: then nobody has said it.
    """

    _seen: dict[str, int] | None = None

    @classmethod
    def of(cls, *, is_new: bool) -> "LostLeases":
        """Begin with a task that is as it was written, or with whatever the first view shows."""
        return cls({} if is_new else None)

    def news(self, view: TaskSnapshot) -> list[str]:
        """Return a sentence for each worker that was lost since the last view, with what becomes of its steps."""
        before, self._seen = self._seen, {step.key: step.lost_leases for step in view.steps}
        if before is None:
            return []
        lost = [step for step in view.steps if step.lost_leases > before.get(step.key, 0)]
        by_worker = Counter(step.lost_to for step in lost)
        again = Counter(step.lost_to for step in lost if not step.status.is_terminal)
        return [f"{one_line(worker, 200)}{_consequence(again[worker])}" for worker in by_worker]


def _consequence(number: int) -> str:
    if not number:
        return ""
    return "; 1 step starts again" if number == 1 else f"; {number} steps start again"


class InterruptedBeforeStartError(Exception):
    """Ctrl-C before anything was written."""


@dataclass(slots=True)
class Interrupts:
    """Counts Ctrl-C, and the signals that mean the same; each waits to be noticed."""

    count: int = 0
    _first: asyncio.Event = field(default_factory=asyncio.Event)
    _second: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.hear)

    async def wait(self, number: int) -> None:
        """Return when there have been at least ``number`` of them (1 or 2)."""
        await (self._first if number == 1 else self._second).wait()

    def hear(self, times: int = 1) -> None:
        for _ in range(times):
            self.count += 1
            (self._first if self.count == 1 else self._second).set()


@dataclass(slots=True)
class Watch:
    """One client command that follows one task. ``attachment`` is replaced when a dead service is started again."""

    client: Client
    attachment: Attachment
    interrupts: Interrupts
    settings: Settings
    is_json: bool = False
    is_new: bool = False
    """The command has started the task: whatever has happened to it is news."""
    _restarts: int = 0
    _display: Display | None = None
    _answering: "asyncio.Task[None] | None" = None

    async def follow(self, session: Session, task_id: str) -> int:
        """Follow the task to its end and report; return the exit code."""
        self._display = make_display(is_plain=self.is_json)
        narrating = await self._narrate(task_id)
        try:
            if session.approval_mode is ApprovalMode.PROMPT:
                self._answer(session)
            view = await self._until_ended(task_id)
        finally:
            narrating.cancel()
            await asyncio.gather(narrating, return_exceptions=True)
            # A question that stands on the terminal goes first: what is said next must not be drawn over.
            await self._stop_answering()
            self._display.close()
        if view is None:
            return await self._interrupted(task_id)
        return await self._report(await outcome_of(self.client.store, view, self.settings.runs))

    async def _narrate(self, task_id: str) -> "asyncio.Task[None]":
        """Begin to tell what the agent of an ask does; of a plan there is nothing to tell."""
        assert self._display is not None
        task = await self.client.store.tasks.task(task_id)
        is_ask = task.kind is TaskKind.ASK
        work = narrate(self.client, task.root_run_id, self._display) if is_ask else asyncio.sleep(0)
        return asyncio.create_task(work)

    async def _until_ended(self, task_id: str) -> TaskSnapshot | None:
        """Return the last view, or None when Ctrl-C came first."""
        following = asyncio.create_task(self._show(task_id))
        interrupted = asyncio.create_task(self.interrupts.wait(1))
        alive = asyncio.create_task(self._keep_service())
        try:
            await asyncio.wait({following, interrupted, alive}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return await following
            if alive.done():
                await alive
            return None
        finally:
            for task in (following, interrupted, alive):
                task.cancel()
            await asyncio.gather(following, interrupted, alive, return_exceptions=True)

    async def _show(self, task_id: str) -> TaskSnapshot:
        assert self._display is not None
        last: TaskSnapshot | None = None
        losses = LostLeases.of(is_new=self.is_new)
        stall_reasons = StallReasons(self.client, lambda: self.attachment.record, self._display.note)
        voices = StepVoices(self.client, self._display)
        try:
            async for view in self.client.follow(task_id):
                self._display.show(view)
                voices.follow(view)
                for sentence in losses.news(view):
                    self._display.note(sentence)
                await stall_reasons.refresh(view)
                last = view
        finally:
            await voices.close()
        assert last is not None
        return last

    def _answer(self, session: Session) -> None:
        from soong.orchestrator.approvals.remote_responder import refusal_reason
        from soong.orchestrator.cli.prompt import (  # rich, only where somebody is asked
            TerminalPrompt,
            full_input_reader,
            terminal_console,
        )

        assert self._display is not None
        refusal = refusal_reason(session, self.client.settings.principal)
        if refusal:
            self._display.note(f"questions are not answered here: {refusal}")
            return
        whole = full_input_reader(self.client.store.runs)
        prompt = TerminalPrompt(terminal_console(), self._display.hold, whole=whole, clock=self.client.clock)
        note = self._display.note
        self._answering = self.client.attach(
            session,
            prompt,
            channel="terminal",
            notify=lambda sentence: note(visible(sentence)),
            on_waiting=prompt.take_waiting,
        )

    async def _stop_answering(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
            self._answering = None

    async def _keep_service(self) -> None:
        """Wait as long as the service lives; follow it to its successor, or start another when it was killed.

        Raises: UnavailableError when it was stopped, or dies again and again.
        """
        assert self._display is not None
        while True:
            if self.attachment.control is None:
                await asyncio.Event().wait()
                return
            ending = await self.attachment.control.ended()
            if ending is ShutdownState.STOPPING:
                raise UnavailableError("the service was stopped; the task continues when a service runs again")
            if ending is ShutdownState.HANDED_OVER:
                self._display.note("`soong up` takes over; continuing with it …")
                await self._attach_again(start_after_s=timing.PATIENCE_S)
                continue
            self._restarts += 1
            if self._restarts > RESTARTS:
                raise UnavailableError(f"the service died {self._restarts} times{last_words(self.attachment.log)}")
            self._display.note("the service died; starting another …")
            await self._attach_again()

    async def _attach_again(self, *, start_after_s: float = 0.0) -> None:
        await self.attachment.release()
        self.attachment = await attach(self.settings, start_after_s=start_after_s)

    async def _interrupted(self, task_id: str) -> int:
        """Pause what this command started; a second Ctrl-C ends the service that it started at once.

        A service that stays would run the task on: there a second Ctrl-C waits for the pause, and not for its steps.
        """
        say("\npausing … (Ctrl-C again ends it at once)")
        task = await self.client.store.tasks.task(task_id)
        is_paused = asyncio.Event()
        pausing = asyncio.create_task(
            self.client.pause(task, reason="interrupted", limit_s=timing.RELEASE_LIMIT_S, when_paused=is_paused.set)
        )
        pausing.add_done_callback(lambda _: is_paused.set())
        second = asyncio.create_task(self.interrupts.wait(2))
        await asyncio.wait({pausing, second}, return_when=asyncio.FIRST_COMPLETED)
        if second.done():
            if self.attachment.process is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timing.GRACE_S):
                        await is_paused.wait()
            self.attachment.kill()
        elif not await pausing:
            left = await still_running_in(self.client.store, task_id) or "not everything stopped"
            say(f"{left} after {timing.RELEASE_LIMIT_S:g} s; what is left is handed back when its worker ends")
        for waiting in (pausing, second):
            waiting.cancel()
        await asyncio.gather(pausing, second, return_exceptions=True)
        await self.client.close()  # before the service that it listens to may go
        await self.leave(wait=True)
        say(f"continue it: {program()} resume {task_id}")
        if self.is_json:
            emit({"id": task_id, "status": "interrupted", "exit_code": int(ExitCode.INTERRUPTED)})
        return ExitCode.INTERRUPTED

    async def leave(self, *, wait: bool) -> None:
        """Let go of the service; with ``wait`` until the one that this command started has ended."""
        await self.attachment.release()
        if wait and not await self.attachment.wait_until_gone(timing.PATIENCE_S):
            self.attachment.kill()

    async def _report(self, outcome: TaskOutcome) -> int:
        if outcome.status is TaskStatus.COMPLETED:
            await self.client.close_when_done(outcome.view.task)
        result = TaskResult.of_outcome(outcome).model_dump()
        emit(result) if self.is_json else output(text_of(result))
        return outcome.exit_code


async def interruptible(interrupts: Interrupts, work: "asyncio.Task[Attachment]") -> Attachment:
    """Wait for work that may be given up at Ctrl-C. Raises: InterruptedBeforeStartError."""
    interrupted = asyncio.create_task(interrupts.wait(1))
    await asyncio.wait({work, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    interrupted.cancel()
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise InterruptedBeforeStartError
    return await work
