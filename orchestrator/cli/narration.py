"""What the agent of an ask says and does, line by line, while people watch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from soong.orchestrator.cli.console import compact, one_line, visible
from soong.orchestrator.cli.display import Display
from soong.orchestrator.client.client import Client
from soong.orchestrator.client.live_run import follow_live
from soong.orchestrator.client.tail import RunTail, no_subscription
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.wire.answers import AnswerDelta

MAX_SAID_CHARS: Final = 500
MAX_INPUT_CHARS: Final = 100

_ANSWER_OVER: Final = frozenset({EventType.MODEL_RESPONDED, EventType.MODEL_FAILED})

_TELLING: Final = ("instructions", "title", "step_id", "path", "pattern", "task_id", "reason")
"""Arguments of which the first that is given says what a call is about."""


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
