"""What agents say and do while people watch: that of an ask line by line, those of steps while their models write."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from soong.orchestrator.cli.console import compact, one_line, visible
from soong.orchestrator.cli.display import Display
from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.orchestrator.client.tail import RunTail, follow_live, listen_to_answers, no_subscription
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.wire.events import AnswerDelta

MAX_SAID_CHARS: Final = 500
MAX_INPUT_CHARS: Final = 100

_ANSWER_OVER: Final = frozenset({EventType.MODEL_RESPONDED, EventType.MODEL_FAILED})

_TELLING: Final = ("instructions", "title", "step_id", "path", "pattern", "task_id", "reason")
"""Arguments of which the first that is given says what a call is about."""

MOST: Final = 4
"""Each takes a connection to Redis, and nobody reads more than a few."""


@dataclass(slots=True)
class GrowingAnswer:
    """The text of the answer that arrives, and what it calls."""

    turn: int = 0
    text: str = ""

    def take(self, delta: AnswerDelta) -> str:
        """Return what can be shown now."""
        self.text = delta.applied_to(self.text if delta.turn == self.turn else "")
        self.turn = delta.turn
        calls = f"→ {', '.join(delta.calls)} …" if delta.calls and not delta.is_complete else ""
        return "\n".join(part for part in (self.text, calls) if part)


async def narrate(client: Client, run_id: str, display: Display) -> None:
    """Tell what a run does from its beginning to its end; of its answer nothing, which is shown at the end."""
    tail = RunTail(client.store.runs, client.subscriber.subscribe_run)
    last_node = 0
    growing = GrowingAnswer()
    listen = client.subscriber.subscribe_answer if display.shows_answers else no_subscription
    async for event in follow_live(tail, listen, run_id):
        if isinstance(event, AnswerDelta):
            display.speak(run_id, growing.take(event))
            continue
        if event.type in _ANSWER_OVER:
            display.speak(run_id, "")
        if event.type in (EventType.MODEL_RESPONDED, EventType.TOOL_STARTED):
            for node in await client.store.runs.node_page(run_id, after=last_node):
                last_node = node.number
                for sentence in _said(node):
                    display.note(sentence)
        if line := _line(event):
            display.note(line)


def _said(node: Node) -> Iterator[str]:
    """Yield the texts of an answer that calls tools; one without calls is the run's result."""
    message = node.payload.get("message")
    if node.kind is not NodeKind.ASSISTANT or not isinstance(message, Mapping):
        return
    parts = [part for part in cast("list[Json]", message.get("parts", ())) if isinstance(part, Mapping)]
    if not any(part.get("part_kind") == "tool-call" for part in parts):
        return
    for part in parts:
        if part.get("part_kind") == "text" and str(part.get("content")).strip():
            yield f"“{one_line(str(part['content']), MAX_SAID_CHARS)}”"


def _line(event: Event) -> str:
    tool = visible(str(event.data.get("tool", "")))
    match event.type:
        case EventType.TOOL_STARTED:
            return f"→ {tool} {_about(event.data.get('input'))}".rstrip()
        case EventType.TOOL_FAILED | EventType.TOOL_DENIED:
            return f"✗ {tool}: {one_line(str(event.data.get('message', '')), 0)}"
        case EventType.MODEL_FAILED:
            again = "; asking again" if event.data.get("is_retried") else ""
            return f"✗ the model: {one_line(str(event.data.get('message', '')), 0)}{again}"
        case EventType.MODEL_FALLBACK:
            return f"→ the model {visible(str(event.data.get('to', '')))} continues"
        case _:
            return ""


def _about(given: Json) -> str:
    if not isinstance(given, Mapping):
        return ""
    telling = next((given[name] for name in _TELLING if given.get(name)), given or "")
    return one_line(telling if isinstance(telling, str) else compact(telling), MAX_INPUT_CHARS)


@dataclass(slots=True)
class StepVoices:
    """Listens to the first few running agents of a task. Its user calls :meth:`close`."""

    client: Client
    display: Display
    _listening: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def follow(self, view: TaskSnapshot) -> None:
        """Listen to those that run now."""
        if not self.display.shows_answers:
            return
        running = [
            step.run_id for step in view.steps if step.status is StepStatus.RUNNING and step.kind.traits.is_agent
        ]
        for run_id in [one for one in self._listening if one not in running]:
            self._listening.pop(run_id).cancel()
            self.display.speak(run_id, "")
        for run_id in running:
            if len(self._listening) < MOST and run_id and run_id not in self._listening:
                self._listening[run_id] = asyncio.create_task(self._listen(run_id))

    async def _listen(self, run_id: str) -> None:
        growing = GrowingAnswer()

        def take(delta: AnswerDelta) -> None:
            self.display.speak(run_id, growing.take(delta))

        await listen_to_answers(self.client.subscriber, run_id, take)

    async def close(self) -> None:
        """Listen no more."""
        listening = list(self._listening.values())
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
