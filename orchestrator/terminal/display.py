"""The display of a watched task: its stream, as a live picture on a terminal or as one line per change."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

from soong.orchestrator.client.program import program
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import compact, cut, one_line, say, visible
from soong.orchestrator.terminal.summary import ENDED, LIVE, SYMBOLS, TOLD, Document, pull_text, step_line
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.engine.wire.notifier import AnswerDelta

MAX_SAID_CHARS: Final = 500
MAX_INPUT_CHARS: Final = 100

_TELLING: Final = ("instructions", "title", "step_id", "path", "pattern", "task_id", "reason")
"""Arguments of which the first that is given says what a call is about."""
DELTA: Final = "delta"
MOST_TOLD: Final[Mapping[str, int]] = {"failed": 5, "completed": 20}
"""The number of steps whose last lines are shown."""
LINES_SHOWN: Final = 5
LINES_READ: Final = 100
"""The last lines of a failed function are those of its traceback, whose end is in the error already."""
MOST: Final = 4
"""Each takes a connection, and nobody reads more than a few."""


@dataclass(slots=True)
class TaskView:
    """The events of the streams that have come so far. ``questions`` are those of the task that wait."""

    task_id: str
    questions: Sequence[Document] = ()
    head: Document = field(default_factory=dict)
    """The newest event of the task itself; empty before the first."""
    task: Document = field(default_factory=dict)
    task_ids: Sequence[str] = ()
    """The task, and those that its agent has made."""
    steps: Sequence[Document] = ()
    """All steps as planned, items of a map below it."""
    workers: Sequence[Document] = ()
    _steps: dict[str, dict[str, Document]] = field(default_factory=dict)

    def take(self, task_id: str, event: Document, *, is_whole: bool) -> None:
        """Take an event of the stream of the task, or of one that its agent has made."""
        if task_id == self.task_id:
            self.head, self.task, self.workers = event, event["task"], event["workers"]
            self.task_ids = (task_id, *event["planned"])
        steps = self._steps.setdefault(task_id, {})
        if is_whole:
            steps.clear()
        steps.update({step["id"]: {**step, "key": f"{task_id}/{step['id']}"} for step in event["steps"]})
        self.steps = [step for one in self.task_ids for step in _in_plan_order(self._steps.get(one, {}))]

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(step["status"] for step in self.steps)


def _in_plan_order(steps: Mapping[str, Document]) -> Iterator[Document]:
    items: dict[str, list[Document]] = {}
    for step in steps.values():
        if step["map"] in steps:
            items.setdefault(step["map"], []).append(step)
    for step in steps.values():
        if step["map"] not in steps:
            yield step
            yield from items.get(step["id"], ())


@dataclass(slots=True)
class LostLeases:
    """Compares each view of a task with the one before.

    Leases lost before the first view are not reported again, unless the task is new (``{}``): then none was reported.
    """

    _seen: dict[str, int] | None = None

    def news(self, view: TaskView) -> list[str]:
        """Return a sentence for each worker that was lost since the last view, with what becomes of its steps."""
        steps = view.steps
        before, self._seen = self._seen, {step["key"]: step["lost_leases"] for step in steps}
        if before is None:
            return []
        lost = [step for step in steps if step["lost_leases"] > before.get(step["key"], 0)]
        by_worker = Counter(step["lost_to"] for step in lost)
        again = Counter(step["lost_to"] for step in lost if step["status"] not in ENDED)
        words = {0: "", 1: "; 1 step starts again"}
        return [
            one_line(worker, 200) + words.get(again[worker], f"; {again[worker]} steps start again")
            for worker in by_worker
        ]


@dataclass(slots=True)
class LastLines:
    """Reads the last lines that a step has printed, once for each of the first few that completed or failed."""

    api: Api
    _seen: dict[str, set[str]] = field(default_factory=lambda: {status: set() for status in MOST_TOLD})

    async def news(self, view: TaskView) -> list[str]:
        """Return the lines of the steps that have ended since the last view."""
        found = []
        for step in view.steps:
            seen, run = self._seen.get(step["status"], set()), step["run"]
            if not run or run in seen or len(seen) >= MOST_TOLD.get(step["status"], 0):
                continue
            seen.add(run)
            with suppress(SoongError):
                page = (await self.api.get(f"/v1/runs/{run}/logs", tail=LINES_READ))["items"]
                texts = [one_line(line["text"]) for line in page if _is_printed(line)]
                more = [f"… before: {program()} runs logs {run}"] if len(texts) > LINES_SHOWN else []
                found += [f"  {one_line(step['id'], 60)}: {text}" for text in more + texts[-LINES_SHOWN:]]
        return found


def _is_printed(line: Document) -> bool:
    """Say whether the step itself wrote it: records below WARNING are mostly those of libraries."""
    is_own = line["level"] not in ("debug", "info") or line["text"].startswith("step: ")
    return is_own and line["stream"] != "traceback" and bool(line["text"].strip())


@dataclass
class LineDisplay:
    """One line on standard error for each change: for pipes, logs and ``--json``."""

    shows_answers: ClassVar[bool] = False
    """Whether :meth:`speak` shows anything: lines are for what is complete."""

    write: Callable[[str], None] = say
    _seen: dict[str, str] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _lacking: set[tuple[str, str]] = field(default_factory=set)
    _workers: int = 0
    _told_to_pull: str = ""

    def show(self, view: TaskView) -> None:
        live = [worker for worker in view.workers if worker["state"] == LIVE]
        if len(live) != self._workers:
            self._workers = len(live)
            self.write(f"  workers: {len(live)}, slots: {sum(worker['slots'] for worker in live)}")
        for step in view.steps:
            if self._seen.get(step["key"]) != step["status"]:
                self._seen[step["key"]] = step["status"]
                if step["status"] in TOLD:
                    self.write(f"  {step_line(step)}")
            if step["lacks"] and (step["key"], step["lacks"]) not in self._lacking:
                self._lacking.add((step["key"], step["lacks"]))
                self.write(f"  {SYMBOLS['ready']} {one_line(step['id'], 60)} waits: {one_line(step['lacks'], 0)}")
        if (sentence := pull_text(view.task, view.steps)) and not self._told_to_pull:
            self.write(f"  {sentence}")
        self._told_to_pull = sentence
        for question in view.questions:
            if question["id"] not in self._asked:
                self._asked.add(question["id"])
                tool, shown = visible(question["tool"], limit=80), cut(visible(question["target"]["shown"]), 100)
                self.write(f"  ? {tool} asks for {shown} ({question['identity']['run_id']})")

    def hold(self, held: bool) -> None:
        """Take it off the terminal while something else is written there; lines disturb nobody."""

    def note(self, sentence: str) -> None:
        self.write(f"  {sentence}")

    def speak(self, run_id: str, text: str) -> None:
        """Show the text that a run's model is writing, in place of what it was before; empty: it has ended."""

    def close(self) -> None:
        """Nothing stays open."""


@dataclass(slots=True)
class GrowingAnswer:
    """The text of the answer that arrives, and what it calls."""

    turn: int = 0
    text: str = ""

    def take(self, event: Document) -> str:
        """Return what can be shown now."""
        delta = AnswerDelta(**event)
        self.text = delta.applied_to(self.text if delta.turn == self.turn else "")
        self.turn = delta.turn
        calls = f"→ {', '.join(delta.calls)} …" if delta.calls and not delta.is_complete else ""
        return "\n".join(part for part in (self.text, calls) if part)


def events_of_run(api: Api, run_id: str, seen: int = 0) -> AsyncIterator[tuple[str, Document]]:
    """Yield the events of a run with their names, after those that were seen; a service that is away is waited for."""
    return followed(api, f"/v1/runs/{run_id}/stream", "id", seen)


async def followed(api: Api, path: str, number: str, seen: int) -> AsyncIterator[tuple[str, Document]]:
    """Yield the events of a stream of numbered entries with their names, as :func:`events_of_run`."""
    while True:
        try:
            async for name, event in api.stream(path, query={"after": seen}):
                seen = int(event[number]) if number in event else seen
                yield name, event
        except UnavailableError:
            await asyncio.sleep(timing.POLL_ROWS_S)
        else:
            return


async def narrate(api: Api, run_id: str, display: LineDisplay) -> None:
    """Tell what a run does from its beginning to its end; of its answer nothing, which is shown at the end."""
    last_node = 0
    growing = GrowingAnswer()
    async for name, event in events_of_run(api, run_id):
        if name == DELTA:
            display.speak(run_id, growing.take(event))
            continue
        kind = event["type"].removeprefix("soong.")
        if kind in ("model_responded", "model_failed"):
            display.speak(run_id, "")
        if kind in ("model_responded", "tool_started"):
            for node in (await api.get(f"/v1/runs/{run_id}/nodes", after=last_node))["items"]:
                last_node = node["number"]
                for sentence in _said(node):
                    display.note(sentence)
        if line := _line(kind, event["data"]):
            display.note(line)


def _said(node: Document) -> Iterator[str]:
    """Yield the texts of an answer that calls tools; one without calls is the run's result."""
    message = node["payload"].get("message")
    if node["kind"] != "assistant" or not isinstance(message, Mapping):
        return
    parts = [part for part in cast("list[Json]", message.get("parts", ())) if isinstance(part, Mapping)]
    if not any(part.get("part_kind") == "tool-call" for part in parts):
        return
    for part in parts:
        if part.get("part_kind") == "text" and str(part.get("content")).strip():
            yield f"“{one_line(str(part['content']), MAX_SAID_CHARS)}”"


def _line(kind: str, data: Mapping[str, Any]) -> str:
    tool = visible(str(data.get("tool", "")))
    match kind:
        case "tool_started":
            return f"→ {tool} {_about(data.get('input'))}".rstrip()
        case "tool_failed" | "tool_denied":
            return f"✗ {tool}: {one_line(str(data.get('message', '')), 0)}"
        case "model_failed":
            again = "; asking again" if data.get("is_retried") else ""
            return f"✗ the model: {one_line(str(data.get('message', '')), 0)}{again}"
        case "model_fallback":
            return f"→ the model {visible(str(data.get('to', '')))} continues"
        case _:
            return ""


def _about(given: Json) -> str:
    if not isinstance(given, Mapping):
        return ""
    telling = next((given[name] for name in _TELLING if given.get(name)), given or "")
    return one_line(telling if isinstance(telling, str) else compact(telling), MAX_INPUT_CHARS)


@dataclass(slots=True)
class StepVoices:
    """Listens to the first few running agents of a task. Its user cancels what is ``listening``."""

    api: Api
    display: LineDisplay
    listening: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def follow(self, view: TaskView) -> None:
        """Listen to those that run now."""
        running = [step["run"] for step in view.steps if step["status"] == "running" and step["kind"] == "agent"]
        for run_id in [one for one in self.listening if one not in running]:
            self.listening.pop(run_id).cancel()
            self.display.speak(run_id, "")
        for run_id in running:
            if len(self.listening) < MOST and run_id and run_id not in self.listening:
                self.listening[run_id] = asyncio.create_task(self._listen(run_id))

    async def _listen(self, run_id: str) -> None:
        growing = GrowingAnswer()
        async for name, event in events_of_run(self.api, run_id):
            if name == DELTA:
                self.display.speak(run_id, growing.take(event))
