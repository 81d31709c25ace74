"""The message to a channel: its notices as a title, lines and a link. Pure.

The texts of the notices are inert already (soong.orchestrator.notifications.consumer); a channel escapes them for its
own form. A link leads to the console, where a person signs in: it holds no token and no answer.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from soong.shared.core.jsontext import Json
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value
from soong.shared.engine.tasks.event_feed import Notice

SHOWN: Final = 10
"""Notices that a text describes; the others are counted."""

_WORDS: Final = {
    "question": ("question", "questions"),
    "failure": ("failure", "failures"),
    "budget": ("budget", "budgets"),
    "end": ("end", "ends"),
    "worker_lost": ("worker lost", "workers lost"),
}


class Message(Value):
    """Notices that are sent together. ``id`` is the same in every attempt."""

    id: str
    notices: Sequence[Notice]
    console: str = ""
    """Address of the web console; empty: none is known."""

    @property
    def type(self) -> str:
        """Its kind, for programs: the event, or ``soong.events`` for several kinds."""
        events = {notice.event for notice in self.notices}
        return f"soong.{events.pop()}" if len(events) == 1 else "soong.events"

    @property
    def is_question(self) -> bool:
        return any(notice.event == "question" for notice in self.notices)

    @property
    def title(self) -> str:
        """One line of at most about 200 characters."""
        if len(self.notices) == 1:
            return _headline(self.notices[0])
        counted = Counter(notice.event for notice in self.notices)
        return ", ".join(f"{number} {_WORDS[event][number > 1]}" for event, number in sorted(counted.items()))

    @property
    def lines(self) -> list[str]:
        """The notices in words, each a paragraph of few lines."""
        shown = [line for notice in self.notices[:SHOWN] for line in self._described(notice)]
        more = len(self.notices) - SHOWN
        return [*shown, *([f"and {more} more"] if more > 0 else [])]

    @property
    def link(self) -> str:
        """The address of the one thing that it is about, or of the inbox; empty: no console is known."""
        return self._link(self.notices[0]) if len(self.notices) == 1 else self._address("inbox")

    def as_json(self) -> dict[str, Json]:
        """Return the document of a webhook: fields of Standard Webhooks around the notices."""
        return {
            "type": self.type,
            "timestamp": rfc3339(min(notice.created_us for notice in self.notices)),
            "data": {
                "id": self.id,
                "title": self.title,
                "link": self.link,
                "notices": [self._as_json(notice) for notice in self.notices],
            },
        }

    def _as_json(self, notice: Notice) -> dict[str, Json]:
        facts = {name: value for name, value in notice.facts.items() if name != "v"}
        more = {"event": notice.event, "time": rfc3339(notice.created_us), "link": self._link(notice)}
        return {**more, "command": _command(notice), **facts}

    def _described(self, notice: Notice) -> Iterator[str]:
        if notice.event == "test":
            yield "This is a test; nothing waits for you."
            return
        if len(self.notices) > 1:
            yield f"• {_headline(notice)}"
        facts = notice.facts
        yield f"task {_text(notice, 'task') or 'without a title'}" + _before(", step ", _text(notice, "step"))
        if notice.event == "question":
            lineage = facts.get("lineage")
            above = (
                " < ".join(map(str, lineage)) if isinstance(lineage, Sequence) and not isinstance(lineage, str) else ""
            )
            yield f"asked by {_text(notice, 'agent')} ({_text(notice, 'role')})" + _before(" < ", above)
        if summary := _text(notice, "summary"):
            yield f"reason: {summary}"
        yield self._link(notice) if self.console else _command(notice)

    def _link(self, notice: Notice) -> str:
        if notice.request_id:
            return self._address("inbox", notice.request_id)
        if notice.event == "test":
            return self._address("inbox")
        return self._address("tasks", _text(notice, "task_id"))

    def _address(self, *parts: str) -> str:
        return f"{self.console}/#/{'/'.join(quote(part, safe='') for part in parts)}" if self.console else ""


def _headline(notice: Notice) -> str:
    # A title is read on a locked screen, alone: in quotes the name of a task does not pass for words of ours.
    name = _text(notice, "task").replace("“", "'").replace("”", "'")
    task = f"“{name}”" if name else _text(notice, "task_id")
    match notice.event:
        case "question":
            danger = ", dangerous" if notice.facts.get("is_dangerous") is True else ""
            return f"{_text(notice, 'agent')} asks to use {_text(notice, 'tool')} ({_text(notice, 'risk')}{danger})"
        case "budget":
            return f"Budget {_text(notice, 'outcome')}: {task}"
        case "test":
            return f"Test of the channel {notice.channel}"
        case "worker_lost":
            return f"Worker lost: {task}"
        case _:
            return f"Task {_text(notice, 'outcome')}: {task}"


def _command(notice: Notice) -> str:
    if notice.request_id:
        return f"soong approvals show {notice.request_id}"
    if notice.event == "test":
        return "soong notifications list"
    return f"soong tasks show {_text(notice, 'task_id')}"


def _text(notice: Notice, name: str) -> str:
    value = notice.facts.get(name)
    return value if isinstance(value, str) else ""


def _before(words: str, text: str) -> str:
    return f"{words}{text}" if text else ""
