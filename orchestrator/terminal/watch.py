"""Watching a task from a terminal: show it, answer its questions, pause it on Ctrl-C, survive the service's death."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from soong.orchestrator.client.program import program
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.terminal.api import MOST_OF_A_PAGE, Api
from soong.orchestrator.terminal.console import Verbosity, chosen, emit, output, say, visible
from soong.orchestrator.terminal.display import LastLines, LineDisplay, LostLeases, StepVoices, TaskView, narrate
from soong.orchestrator.terminal.held_service import HeldService, Interrupts
from soong.orchestrator.terminal.summary import ENDED, LIVE, Document, answer_of, still_running, summary_of
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.jsontext import inert

if TYPE_CHECKING:
    from soong.orchestrator.client.stall_reasons import StallReasons

EXIT_INTERRUPTED: Final = 130


@dataclass(slots=True)
class Watch:
    """One command that follows one task. ``api`` are the operations at ``service``, which the command holds."""

    service: HeldService
    api: Api
    interrupts: Interrupts
    task: Document
    is_json: bool
    is_new: bool
    """The command has started the task: whatever has happened to it is news."""
    display: LineDisplay = field(init=False)
    _path: str = field(init=False)
    _view: TaskView = field(init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _streams: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.is_json or chosen() is Verbosity.QUIET or not sys.stdout.isatty():
            self.display = LineDisplay()
        else:
            from soong.orchestrator.terminal.live import Live  # rich, only for terminals

            self.display = Live()
        task_id = self.task["id"]
        self._path = f"/v1/tasks/{task_id}"
        self._view = TaskView(task_id, task_ids=[task_id])

    async def follow(self, *, is_asked: bool) -> int:
        """Follow the task to its end, ask a person what it asks, and report; return the exit code."""
        answering = asyncio.create_task(self._answer()) if is_asked else None
        following = asyncio.create_task(self._show())
        alive = asyncio.create_task(self.service.keep(self.display.note))
        interrupted = asyncio.create_task(self.interrupts.wait(1))
        try:
            await asyncio.wait({following, alive, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            is_over = following.done()
            for ended in (following, alive):
                if ended.done():
                    await ended
                    break
        finally:
            await cancelled(following, alive, interrupted)
            # A question that stands on the terminal goes first: what is said next must not be drawn over.
            await cancelled(answering, *self._streams.values())
            self.display.close()
        return await self._report() if is_over else await self._interrupted()

    async def _show(self) -> None:
        """Show the task until nothing more happens to it by itself.
        Raises: UnavailableError when it waits for what will not come; it has been paused.
        """
        losses, stall_reasons = LostLeases({} if self.is_new else None), _StallLooks(self)
        last_lines = LastLines(self.api)
        voices = StepVoices(self.api, self.display)
        self._listen(self._view)
        ended_s: float | None = None
        now_s = asyncio.get_running_loop().time
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timing.LEAST_PAUSE_S if ended_s else timing.POLL_ROWS_S):
                        await self._changed.wait()
                self._changed.clear()
                view = self._view
                if not view.head:
                    stream = self._streams[self.task["id"]]
                    if stream.done() and (failure := stream.exception()) is not None:
                        raise failure
                    continue
                self._listen(view)
                await self._look_at_questions(view)
                self.display.show(view)
                if self.display.shows_answers:
                    voices.follow(view)
                for sentence in (*losses.news(view), *await last_lines.news(view)):
                    self.display.note(sentence)
                await stall_reasons.look(view)
                status, is_held = view.task["status"], any(step["status"] == "running" for step in view.steps)
                has_ended = status in ENDED or (status == "paused" and not is_held)
                ended_s = (ended_s or now_s()) if has_ended else None
                if ended_s is not None and (not is_held or now_s() - ended_s >= timing.CLOSE_LIMIT_S):
                    return
        finally:
            await cancelled(*voices.listening.values())

    def _listen(self, view: TaskView) -> None:
        """Follow the task, those that its agent makes if it is an ask, and what that agent says itself."""
        for task_id in view.task_ids:
            if task_id not in self._streams:
                self._streams[task_id] = asyncio.create_task(self._stream(task_id))
        if view.task.get("kind") == "ask" and (root_run := view.head["root_run"]) not in self._streams:
            self._streams[root_run] = asyncio.create_task(narrate(self.api, root_run, self.display))

    async def _stream(self, task_id: str) -> None:
        """Take in what happens in a task until its end; a service that is away is waited for."""
        while True:
            try:
                async for name, event in self.api.stream(f"/v1/tasks/{task_id}/stream"):
                    self._view.take(task_id, event, is_whole=name == "task")
                    self._changed.set()
            except UnavailableError:
                await asyncio.sleep(timing.POLL_ROWS_S)
            else:
                return

    async def _look_at_questions(self, view: TaskView) -> None:
        """Read the questions that wait, when they are others than before."""
        waiting = view.head["approvals"]
        if waiting != [one["id"] for one in view.questions]:
            with suppress(UnavailableError):
                page = await self.api.get("/v1/approvals", session=self.task["session"], limit=MOST_OF_A_PAGE)
                ids = view.task_ids
                view.questions = [one for one in page["items"] if one["identity"]["task_id"] in ids]

    async def _answer(self) -> None:
        from soong.orchestrator.terminal.prompt import responder_here  # rich, where somebody is asked

        note = self.display.note
        try:
            await responder_here(self.api, self.task["session"], self.display.hold, note).run()
        except SoongError as error:
            note(f"questions are not answered here: {visible(str(error))}")

    async def pause(self, reason: str, when_paused: Callable[[], object] = lambda: None) -> bool:
        """Pause the task and wait until no worker holds a step of it; False when that took longer than the limit.

        ``when_paused`` is called when no other step of it starts.
        """
        try:
            async with asyncio.timeout(timing.RELEASE_LIMIT_S):
                await self.api.post(f"{self._path}/pause", {"reason": reason})
                when_paused()
                while (await self.api.get(f"{self._path}/progress"))["step_counts"].get("running"):  # noqa: ASYNC110
                    await asyncio.sleep(timing.LEAST_PAUSE_S)
        except (TimeoutError, UnavailableError):
            return False
        return True

    async def _interrupted(self) -> int:
        """Pause what this command started; a second Ctrl-C ends the service that it started at once.

        A service that stays would run the task on: there a second Ctrl-C waits for the pause, and not for its steps.
        """
        say("\npausing … (Ctrl-C again ends it at once)")
        is_paused = asyncio.Event()
        pausing = asyncio.create_task(self.pause("interrupted", is_paused.set))
        pausing.add_done_callback(lambda _: is_paused.set())
        second = asyncio.create_task(self.interrupts.wait(2))
        await asyncio.wait({pausing, second}, return_when=asyncio.FIRST_COMPLETED)
        if second.done():
            if not self.service.is_ours:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timing.GRACE_S):
                        await is_paused.wait()
            self.service.kill()
        elif not await pausing:
            left = ""
            with suppress(SoongError):
                left = still_running((await self.api.get(f"{self._path}/result", brief=True))["steps"])
            left = left or "not everything stopped"
            say(f"{left} after {timing.RELEASE_LIMIT_S:g} s; what is left is handed back when its worker ends")
        await cancelled(pausing, second)
        await self.api.close()  # before the service that it listens to may go
        await self.service.leave()
        say(f"continue it: {program()} resume {self.task['id']}")
        if self.is_json:
            emit({"id": self.task["id"], "status": "interrupted", "exit_code": EXIT_INTERRUPTED})
        return EXIT_INTERRUPTED

    async def _report(self) -> int:
        self.api.is_held = False  # the rows alone tell it, if the service has gone
        result = await self.api.get(f"{self._path}/result")
        session = f"/v1/sessions/{result['session']}"
        if result["status"] == "completed" and not (await self.api.get(session))["is_closed"]:
            # It does not close with its task: a job of its owner may read it then.
            tasks = (await self.api.get("/v1/tasks", session=result["session"], limit=MOST_OF_A_PAGE))["items"]
            if all(one["status"] == "completed" for one in tasks):
                with suppress(UnavailableError):  # asked for, and then done by the next owner
                    await self.api.post(f"{session}/close")
        if self.is_json:
            emit(result)
        else:
            output(summary_of(result))
            if answer := answer_of(result):
                # Results of several steps are lines of JSON, of which Markdown would make one paragraph.
                is_text = result["answer"] is not None or "\n\n" in answer
                _render(answer) if is_text and sys.stdout.isatty() else output(answer)
        return int(result["exit_code"])


def _render(text: str) -> None:
    from rich.markdown import Markdown  # 60 ms, and only where a person reads

    from soong.orchestrator.terminal.prompt import terminal_console

    terminal_console().print(Markdown(inert(text), hyperlinks=False))


@dataclass(slots=True)
class _StallLooks:
    """Looks why nothing runs, where nothing does; what it takes is imported then."""

    watch: Watch
    _reasons: "StallReasons | None" = None
    _has_begun: bool = False

    async def look(self, view: TaskView) -> None:
        """Raises: UnavailableError when the task waits for what will not come; it has been paused."""
        is_manned = any(worker["state"] == LIVE for worker in view.workers)
        self._has_begun = self._has_begun or is_manned or any(step["started"] for step in view.steps)
        missing, is_over = view.head["missing_function"], view.task["status"] in ENDED
        if self._reasons is None and (is_over or (is_manned and not missing)):
            return
        self._reasons = self._reasons or self._made()
        await self._reasons.refresh(is_manned=is_manned, has_begun=self._has_begun, missing=missing, is_over=is_over)

    def _made(self) -> "StallReasons":
        from soong.orchestrator.client.stall_reasons import StallReasons

        watch = self.watch

        async def is_owned() -> bool:
            return bool((await watch.api.get("/v1/status"))["orchestrators"])

        return StallReasons(
            watch.task["id"],
            watch.service.control_socket,
            lambda: watch.pause("no worker can run it"),
            is_owned,
            watch.display.note,
        )
