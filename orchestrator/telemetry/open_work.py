"""What a run has begun and not ended, as far as its log was read: it is stored with the place in the log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter

from soong.shared.core.jsontext import Json, JsonObject

MAX_OPEN: Final = 200
"""Of calls and questions of one run at once; older ones are forgotten. More than any turn has."""
MAX_NOTES: Final = 32
"""Of events on one span."""


@dataclass(slots=True)
class OpenSpan:
    """A beginning. ``words`` and ``counts`` are what its end does not say again."""

    since_us: int
    words: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        return {"since_us": self.since_us, "words": {**self.words}, "counts": {**self.counts}}


@dataclass(slots=True)
class OpenWork:
    """Of one run. ``segment`` is the number of its last segment, open or not."""

    segment: int = 0
    agent: OpenSpan | None = None
    """The segment that is open."""
    chat: OpenSpan | None = None
    calls: dict[str, OpenSpan] = field(default_factory=dict)
    """By tool call id."""
    asked: dict[str, OpenSpan] = field(default_factory=dict)
    """By request id."""
    notes: list[tuple[str, int, str]] = field(default_factory=list)
    """What happened in the open segment: (name, when, about what)."""
    ready_us: int = 0
    queue_ms: int = 0
    worker: str = ""

    @classmethod
    def from_json(cls, state: JsonObject) -> "OpenWork":
        return _READER.validate_python(state) if state else cls()

    def as_json(self) -> JsonObject:
        """Return what is not as at the beginning."""
        told: dict[str, Json] = {name: value for name in _NUMBERS_AND_WORDS if (value := getattr(self, name))}
        if self.agent is not None:
            told["agent"] = self.agent.as_json()
        if self.chat is not None:
            told["chat"] = self.chat.as_json()
        if self.calls:
            told["calls"] = {key: span.as_json() for key, span in self.calls.items()}
        if self.asked:
            told["asked"] = {key: span.as_json() for key, span in self.asked.items()}
        if self.notes:
            told["notes"] = [[*note] for note in self.notes]
        return told

    def note(self, name: str, time_us: int, about: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append((name, time_us, about))


def keep(spans: dict[str, OpenSpan], key: str, span: OpenSpan) -> None:
    """Add a beginning; of too many the oldest is forgotten."""
    spans.pop(key, None)
    while len(spans) >= MAX_OPEN:
        del spans[next(iter(spans))]
    spans[key] = span


def counts_of(span: OpenSpan | None) -> Mapping[str, int]:
    return {} if span is None else span.counts


_READER: Final = TypeAdapter(OpenWork)
_NUMBERS_AND_WORDS: Final = ("segment", "ready_us", "queue_ms", "worker")
