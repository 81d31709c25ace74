"""The record of a run, cut into its lives: what one process did of it, from its claim to where that process stopped.

A run that was parked, handed back or lost with its worker has several. Which nodes a life has written follows from its
events alone (an answer from ``model_responded``, a result from the end of its call), so no clock is compared.
"""

from collections.abc import Sequence
from typing import Final

from soong.shared.agents.compaction import inherited
from soong.shared.agents.messages import is_of_a_call
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.store import CallRow

CALL_ENDS: Final = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED})
_BEGINNINGS: Final = frozenset({EventType.RUN_STARTED, EventType.RUN_RESUMED})


class RunRecord(Value):
    """All that the rows keep of one run."""

    run: Run
    nodes: Sequence[Node]
    events: Sequence[Event]
    calls: Sequence[CallRow]


class Life(Value):
    """One life of a run. ``before`` are the nodes that it began with, ``nodes`` those that it wrote.

    ``is_whole``: its loop ended the run. Otherwise its process stopped somewhere, and so does its record.
    """

    before: Sequence[Node]
    nodes: Sequence[Node]
    events: Sequence[Event]
    is_whole: bool

    @property
    def ended_calls(self) -> frozenset[str]:
        return frozenset(call_id for event in self.events if event.type in CALL_ENDS and (call_id := call_of(event)))


def call_of(event: Event) -> str:
    """Return the id of the call that an event is about; empty for an event of the run."""
    return str(event.data.get("tool_call_id") or "")


def lives_of(record: RunRecord) -> list[Life]:
    """Return the lives of a run, in order. A run that has never begun has none."""
    starts = [place for place, event in enumerate(record.events) if event.type in _BEGINNINGS]
    ends = [*starts[1:], len(record.events)]
    first = sum(1 for node in record.nodes if inherited(node))
    if first:
        first += 1  # the words that a fork or a follow-up was given with what it inherits
    lives: list[Life] = []
    for start, end in zip(starts, ends, strict=True):
        events = record.events[start:end]
        last = _last_node(record.nodes, first, events)
        nodes = record.nodes[first:last]
        is_whole = any(node.kind is NodeKind.RESULT for node in nodes)
        lives.append(Life(record.nodes[:first], nodes, events, is_whole))
        first = last
    return lives


def _last_node(nodes: Sequence[Node], first: int, events: Sequence[Event]) -> int:
    """Return where the nodes of a life end that begin at ``first``: after the last that one of its events tells of."""
    answers = sum(event.type == EventType.MODEL_RESPONDED for event in events)
    compactions = sum(event.type == EventType.CONTEXT_COMPACTED for event in events)
    ended = {call_of(event) for event in events if event.type in CALL_ENDS}
    is_ended = any(event.type in (EventType.RUN_COMPLETED, EventType.RUN_FAILED) for event in events)
    last = first
    for place in range(first, len(nodes)):
        node = nodes[place]
        if node.kind is NodeKind.ASSISTANT:
            answers -= 1
            is_told = answers >= 0
        elif is_of_a_call(node) and node.payload.get("tool") != FINAL_TOOL:
            is_told = str(node.payload.get("tool_call_id")) in ended
        elif node.kind is NodeKind.COMPACTION:
            compactions -= 1
            is_told = compactions >= 0
        elif node.kind is NodeKind.RESULT:
            is_told = is_ended
        else:
            continue  # written with what follows it: it opens the run, or asks its model again
        if not is_told:
            break
        last = place + 1
    return last
