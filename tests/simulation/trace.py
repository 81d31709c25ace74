"""What happened, in order: kept as it comes, written out only when somebody wants to read it."""

import hashlib
from collections.abc import Sequence
from typing import Any

from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.step import Advance, Lease, StepEnd

LOG = "log"


class Trace:
    """The story of one run. Two runs of one seed have the same ``digest``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[tuple[float, str, str, object, object]] = []

    def crossed(self, actor: str, method: str, args: Sequence[Any], outcome: object) -> None:
        self._lines.append((self._clock.monotonic_s(), actor, method, args, outcome))

    def note(self, actor: str, what: str, detail: object = "") -> None:
        self._lines.append((self._clock.monotonic_s(), actor, what, detail, None))

    def log(self, name: str, facts: object) -> None:
        """Note what a process logged: for readers, and no part of the digest (a logger may be another's)."""
        self._lines.append((self._clock.monotonic_s(), LOG, name, facts, None))

    def tail(self, lines: int | None) -> list[str]:
        """Return the last lines as text; None gives all."""
        return [self._text(line) for line in self._lines[-lines if lines else 0 :]]

    def digest(self) -> str:
        """Return a hash over the whole story, without what differs between machines."""
        told = hashlib.sha256()
        for line in self._lines:
            if line[1] == LOG:
                continue
            told.update(self._text(line).encode())
        return told.hexdigest()

    def _text(self, line: tuple[float, str, str, object, object]) -> str:
        at_s, actor, what, detail, outcome = line
        shown = f"{at_s:11.6f} {actor:<14} {what}"
        if detail:
            shown += f" {_shown(detail)}"
        return shown if outcome is None else f"{shown} -> {_shown(outcome)}"


def _shown(value: object) -> str:
    """Return a value in few words; of rows that hold a host or a process id, only the id."""
    match value:
        case Advance() | StepEnd() | Lease() | Ownership():
            return _shown_lease(value)
        case str() | bool() | int() | float() | dict():
            return str(value)
        case tuple() | list():
            return "[" + ", ".join(_shown(item) for item in value[:8]) + "]"
        case frozenset() | set():
            return str(sorted(str(item) for item in value))
        case BaseException():
            return f"{type(value).__name__}: {value}"
    return str(getattr(value, "id", "") or getattr(value, "key", "") or type(value).__name__)


def _shown_lease(value: Advance | StepEnd | Lease | Ownership) -> str:
    match value:
        case Advance():
            claims = [f"{claim.step_key}#{claim.fence}" for claim in value.claims]
            return f"claims {claims} stale {sorted(value.stale)}"
        case StepEnd():
            return f"{value.step_key}#{value.fence} {value.status}"
        case Lease():
            return f"{value.step_key}#{value.fence}"
        case Ownership():
            return f"{value.owner_id}@{value.session_id}:{value.epoch}"
