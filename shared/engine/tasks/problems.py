"""A document as JSON values with their lines, and the problems of a plan, within bounds that no plan can move.

A plan of 2 MiB can have a hundred thousand problems, each with a hint that lists a hundred thousand names. The part
that a person reads is kept: the first problems, hints that are cut, and the number of the rest. The time for each
problem does not depend on their number.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from heapq import nsmallest
from itertools import islice
from typing import Final, TypeAlias

from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.jsontext import Json, dotted
from soong.shared.core.value import Value

MAX_PROBLEMS: Final = 50
MAX_SUGGESTIONS: Final = 20
"""Problems with a search for a near word; the others get the known words."""
MAX_NAMED: Final = 12
MAX_CANDIDATES: Final = 1_000
MAX_WORD_CHARS: Final = 64
"""Length of a word that is compared with others: the comparison costs the product of both lengths."""
MAX_TEXT_CHARS: Final = 500
"""Length of a problem and of a hint."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a document to one of its parts."""


class Unknown(Value):
    """The hint of a word that is none of the ``known`` ones; written only for problems that are kept.

    ``but`` is a known word that is not meant: a step does not depend on itself. ``after`` is added to the hint.
    ``names_all``: the known words are named in addition to the near one.
    """

    word: str
    known: Collection[str]
    but: str = ""
    after: str = ""
    names_all: bool = False

    def text(self, *, is_compared: bool = True) -> str:
        """Return the hint: the near word if one is looked for and found, else the known words."""
        close = near(self.word, self._others()) if is_compared else ""
        parts = [f"did you mean {close!r}?"] if close else []
        if self.names_all or not close:
            parts.append(named(self._others(), len(self.known)))
        return " ".join(parts) + self.after

    def _others(self) -> Iterator[str]:
        return (name for name in self.known if name != self.but) if self.but else iter(self.known)


Hint: TypeAlias = str | Unknown


@dataclass(frozen=True, slots=True)
class JoinedNames(Collection[str]):
    """Several collections of names as one, without a copy."""

    parts: tuple[Collection[str], ...]

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self.parts)

    def __iter__(self) -> Iterator[str]:
        return (name for part in self.parts for name in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass(slots=True)
class Problems:
    """The problems of one document. ``source`` precedes the path of each place, parted by ``joint``."""

    source: str = ""
    joint: str = " "
    count: int = 0
    _kept: list[tuple[int, Problem]] = field(default_factory=list)
    _compared: int = 0

    def report(self, path: Path, problem: str, hint: Hint) -> None:
        """Take a problem by the path of its place."""
        shown = dotted(path)
        joint = self.joint if self.source and shown else ""
        self.add(f"{self.source}{joint}{shown}", problem, hint)

    def add(self, place: str, problem: str, hint: Hint, *, line: int = 0) -> None:
        """Take a problem by what its place is called; the kept ones are ordered by ``line``."""
        self.count += 1
        if len(self._kept) < MAX_PROBLEMS:
            self._kept.append((line, Problem(_cut(place), _cut(problem), _cut(self._text(hint)))))

    @property
    def kept(self) -> tuple[Problem, ...]:
        """The problems that are shown, in the order of their lines."""
        return tuple(one for _, one in sorted(self._kept, key=lambda item: item[0]))

    def error(self) -> InvalidPlanError:
        """Return the error that lists them. Only where there is one."""
        return InvalidPlanError(self.kept, total=self.count)

    def refuse(self) -> None:
        """Raises: InvalidPlanError when there is a problem."""
        if self.count:
            raise self.error()

    def _text(self, hint: Hint) -> str:
        if isinstance(hint, str):
            return hint
        self._compared += 1
        return hint.text(is_compared=self._compared <= MAX_SUGGESTIONS)


def near(word: str, known: Collection[str] | Iterator[str]) -> str:
    """Return the known word that is most like ``word``; empty when none is. At most ``MAX_CANDIDATES`` are compared."""
    if len(word) > MAX_WORD_CHARS:
        return ""
    # Others cannot reach the likeness of 0.6 that is asked for.
    shortest, longest = len(word) * 3 / 7, min(len(word) * 7 / 3, MAX_WORD_CHARS)
    alike = [name for name in known if shortest <= len(name) <= longest]
    if len(alike) > MAX_CANDIDATES:
        # With more, those that begin or end as the word does: a slip of the finger is rarely at both ends.
        likely = [name for name in alike if name[:2] == word[:2] or name[-2:] == word[-2:]]
        alike = nsmallest(MAX_CANDIDATES, likely or alike)
    return next(iter(get_close_matches(word, alike, 1)), "")


def named(known: Collection[str] | Iterator[str], total: int) -> str:
    """Return the known words, cut: ``known: a, b, … 12 of 1,600``."""
    first = nsmallest(MAX_NAMED + 1, known)
    if not first:
        return "none is known"
    words = ", ".join(_short(name) for name in first[:MAX_NAMED])
    return f"known: {words}" + (f", … {MAX_NAMED} of {total:,}" if len(first) > MAX_NAMED else "")


def listed(names: Collection[str] | Sequence[str]) -> str:
    """Return names in their own order, cut; ``nothing`` when there are none."""
    first = [_short(name) for name in islice(names, MAX_NAMED)]
    if not first:
        return "nothing"
    return ", ".join(first) + (f", … {MAX_NAMED} of {len(names):,}" if len(names) > MAX_NAMED else "")


def _short(name: str) -> str:
    return name if len(name) <= MAX_WORD_CHARS else f"{name[:MAX_WORD_CHARS]}…"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}… ({len(text):,} characters)"


MAX_CHARS = 4 * 1024 * 1024


@dataclass(slots=True)
class Lines:
    """The line of a collection and of each of its parts, by key or index; a part that is not a collection is its line.

    A tree, and no table of paths: a path for each of a million numbers in a deep list takes half a gigabyte.
    """

    line: int
    parts: "dict[str, int | Lines] | list[int | Lines] | None" = None

    def of(self, part: str | int) -> "int | Lines | None":
        if isinstance(self.parts, dict) and isinstance(part, str):
            return self.parts.get(part)
        if isinstance(self.parts, list) and isinstance(part, int) and 0 <= part < len(self.parts):
            return self.parts[part]
        return None


class Document(Value):
    """A value with the line of each of its parts. ``source`` is the name shown to people, usually the file's path."""

    source: str
    value: Json
    lines: Lines | None = None

    def line(self, path: Path) -> int:
        """Return the line of a part, or of the nearest part around it that has one; 0 when there are no lines."""
        at = self.lines
        if at is None:
            return 0
        for part in path:
            found = at.of(part)
            if not isinstance(found, Lines):
                return found or at.line
            at = found
        return at.line

    def place(self, path: Path) -> str:
        """Return ``file:line path`` for a part, or for the nearest part around it that has a line."""
        line = self.line(path)
        where = f"{self.source}:{line}" if line else self.source
        return f"{where} {dotted(path)}" if path else where
