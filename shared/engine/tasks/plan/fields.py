"""Takes the fields of a mapping one by one, typed, and reports every one that is wrong, missing or unknown.

Owns how a problem in a field is worded. Used by the readers of plans; each problem is reported and replaced by the
default, so that reading continues and one message lists all that is wrong.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import nearest
from soong.shared.engine.tasks.paths import Path
from soong.shared.engine.tasks.plan.plan import Report
from soong.shared.engine.tasks.problems import Unknown

_E = TypeVar("_E", bound=StrEnum)


def kind_of(value: Json) -> str:
    """Return what a value is called in a message."""
    names: dict[type, str] = {bool: "a boolean", int: "a number", float: "a number", str: "a text", type(None): "null"}
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a mapping")


@dataclass(slots=True)
class Fields:
    """One mapping being read. Call ``done`` last: it reports the fields that nobody took."""

    value: JsonObject
    path: Path
    report: Report
    _taken: dict[str, None] = field(default_factory=dict)

    def text(
        self, name: str, default: str = "", *, is_required: bool = False, pattern: str = "", says: str = ""
    ) -> str:
        """Take a text; ``pattern`` must match all of it, ``says`` describes the pattern."""
        value = self._take(name, is_required=is_required)
        if value is None:
            return default
        if not isinstance(value, str) or (is_required and not value.strip()):
            self._wrong(name, value, "a text that is not empty" if is_required else "a text")
            return default
        if pattern and not re.fullmatch(pattern, value):
            self.report((*self.path, name), f"{value!r} cannot be used", f"write {says}")
            return default
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._wrong(name, value, f"an integer from {low} to {high}")
            return default
        return value

    def seconds(self, name: str, default: float | None, high: float) -> float | None:
        value = self._take(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not 0 < float(str(value)) <= high:
            self._wrong(name, value, f"a number of seconds above 0, at most {high:.15g}")
            return default
        return float(str(value))

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Take a list of texts; None when the field is absent."""
        value = self._take(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            self._wrong(name, value, "a list of texts")
            return None
        for index, item in enumerate(value):
            if not isinstance(item, str) or not item:
                self.report((*self.path, name, index), f"{kind_of(item)} in a list of texts", "write a text")
        return tuple(item for item in value if isinstance(item, str) and item)

    def mapping(self, name: str) -> JsonObject | None:
        value = self._take(name)
        if value is None or isinstance(value, Mapping):
            return value
        self._wrong(name, value, "a mapping")
        return None

    def items(self, name: str, *, is_required: bool = False) -> Sequence[Json] | None:
        """Take a list of anything; None when the field is absent."""
        value = self._take(name, is_required=is_required)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            self._wrong(name, value, "a list")
            return None
        return value

    def word(self, name: str, words: type[_E], default: _E) -> _E:
        """Take one word of a closed set."""
        return self.maybe_word(name, words) or default

    def maybe_word(self, name: str, words: type[_E]) -> _E | None:
        """Take one word of a closed set; None when the field is absent."""
        value = self._take(name)
        if value is None:
            return None
        known = {word.value: word for word in words}
        if value not in known:
            hint = nearest(str(value), known).strip() or "write one of them"
            self.report((*self.path, name), f"{value!r} is not one of {', '.join(known)}", hint)
            return None
        return known[str(value)]

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(name, value, "true or false")
            return default
        return value

    def anything(self, name: str, *, is_required: bool = False) -> Json:
        return self._take(name, is_required=is_required)

    def has(self, name: str) -> bool:
        return name in self.value

    def done(self, known_elsewhere: Mapping[str, str] | None = None) -> None:
        """Report what was not taken; ``known_elsewhere`` tells where a known field does belong."""
        for name in self.value:
            if name in self._taken:
                continue
            elsewhere = (known_elsewhere or {}).get(name)
            if elsewhere:
                self.report((*self.path, name), f"the field {name!r} does not belong here", elsewhere)
            else:
                self.report((*self.path, name), f"unknown field {name!r}", Unknown(name, self._taken))

    def _take(self, name: str, *, is_required: bool = False) -> Json:
        self._taken[name] = None
        value = self.value.get(name)
        if value is None and is_required:
            self.report(self.path, f"the field {name!r} is missing", f"add `{name}:`")
        return value

    def _wrong(self, name: str, value: Json, wanted: str) -> None:
        shown = repr(value) if isinstance(value, str | int | float) else kind_of(value)
        self.report((*self.path, name), f"{shown[:60]} cannot be used", f"write {wanted}")
