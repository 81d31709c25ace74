"""Nodes, events and ends without secrets, as they are written (EVT-05).

Most hold nothing that looks like one. All that is written together is looked through at once: a look costs about the
same however little there is to see.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.engine.tasks.step import StepEnd
from soong.shared.sandbox.redact import Redactor


def clean_end(end: StepEnd, redactor: Redactor) -> StepEnd:
    """Return a step's end without secrets, whatever kind of step it was; the same one where it holds none."""
    error = end.error
    message = "" if error is None else error.message
    payloads, data = [node.payload for node in end.nodes], [event.data for event in end.events]
    if not redactor.may_hold_secrets([message, end.output, payloads, data]):
        return end
    clean_error = error if error is None else replace(error, message=redactor.text(message))
    nodes, events = clean_log(end.nodes, end.events, redactor)
    output = redactor.value(end.output)
    return replace(end, output=output, error=clean_error, nodes=tuple(nodes), events=tuple(events))


def clean_log(
    nodes: Sequence[NewNode], events: Sequence[NewEvent], redactor: Redactor
) -> tuple[Sequence[NewNode], Sequence[NewEvent]]:
    """Return nodes and events without secrets, each that holds none as it is."""
    return [clean_node(node, redactor) for node in nodes], [clean_event(event, redactor) for event in events]


def clean_events(events: list[NewEvent], redactor: Redactor) -> list[NewEvent]:
    """Return events without secrets; the same list where none of them holds any."""
    if not events or not redactor.may_hold_secrets([event.data for event in events]):
        return events
    return [clean_event(event, redactor) for event in events]


def clean_node(node: NewNode, redactor: Redactor) -> NewNode:
    payload = redactor.mapping(node.payload)
    return node if payload is node.payload else replace(node, payload=payload)


def clean_event(event: NewEvent, redactor: Redactor) -> NewEvent:
    data = redactor.mapping(event.data)
    return event if data is event.data else replace(event, data=data)
