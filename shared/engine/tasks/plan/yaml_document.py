"""Reads a YAML or JSON document into JSON values that know their line.

Owns the border between text and plan: duplicate keys, aliases, tags, depth and size are refused here, each with its
line. The tree is built from the parser's event stream with a stack of our own, so that a hostile document can neither
exhaust the C stack nor multiply itself by aliases. Functions that read documents import this module themselves, since
PyYAML takes a tenth of the time of a short command. Scalars follow YAML 1.2's core schema (``no`` and dates are text).
A plain scalar that some YAML or JSON reader takes for a number and that has no exact JSON number is refused, so that no
value is rounded and no number becomes text without a word.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import yaml

from soong.shared.core.errors import InvalidJsonError, InvalidPlanError, Problem
from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json, parse_strict
from soong.shared.engine.tasks.problems import MAX_CHARS, Document, Lines

MAX_DEPTH = 60

_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+\Z")
_FOREIGN_NUMBERS: Mapping[str, re.Pattern[str]] = {
    "JSON has no such number": re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|NaN|[-+]?Infinity)\Z"),
    "it is a number of another base": re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)\Z"),
    "it is a number with underscores": re.compile(
        r"(?=.*_)[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?\Z"
    ),
    "YAML 1.1 reads it as a number of base 60": re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z"),
}
"""Plain scalars that are numbers to YAML 1.1, to YAML 1.2 or to JavaScript, each with why they are not one here."""
_NUMERIC_STARTS = frozenset("+-.0123456789NI")
_MAX_INT_DIGITS = len(str(MAX_SAFE_INTEGER))
_WORDS: Mapping[str, Json] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}

# libyaml when PyYAML was built with it: a plan of thousands of steps is read ten times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(text: str, source: str) -> Document:
    """Read exactly one YAML (or JSON) document.

    Raises:
        InvalidPlanError: not YAML, or YAML beyond JSON; the problem carries line and column.
    """
    if len(text) > MAX_CHARS:
        problem = f"the document has more than {MAX_CHARS:,} characters"
        raise _refusal(source, None, problem, "pass large values as files or inputs")
    try:
        return _Builder(source).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        if text.lstrip().startswith(("{", "[")):
            # JSON has a few forms that YAML lacks, such as a surrogate pair in two escapes; its lines are not known.
            with suppress(InvalidJsonError):
                return Document(source, parse_strict(text, max_depth=MAX_DEPTH))
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise _refusal(source, mark, f"invalid YAML: {problem}", _syntax_hint(text, mark)) from error
    except yaml.YAMLError as error:
        raise _refusal(
            source, None, f"invalid YAML: {' '.join(str(error).split())}", "save it as UTF-8 text"
        ) from error


def _syntax_hint(text: str, mark: object) -> str:
    line = text.splitlines()[_position(mark)[0] - 1 :][:1] if mark is not None else []
    if line and re.search(r"[{\[,:]\s*\$\{", line[0]):
        return 'quote the reference: "${…}" (a brace begins a mapping)'
    return "correct the syntax at this place"


def _position(mark: object) -> tuple[int, int]:
    """Return line and column from 1. PyYAML's two parsers have mark classes that share no base."""
    return int(getattr(mark, "line", 0)) + 1, int(getattr(mark, "column", 0)) + 1


def _line(event: yaml.Event) -> int:
    return int(getattr(event.start_mark, "line", 0)) + 1


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _refusal(source: str, mark: object, problem: str, hint: str) -> InvalidPlanError:
    place = source
    if mark is not None:
        line, column = _position(mark)
        place = f"{source}:{line}:{column}"
    return InvalidPlanError([Problem(place, problem, hint)])


@dataclass(slots=True)
class _OpenCollection:
    """A collection whose end has not come. ``key`` is the mapping key that waits for its value."""

    value: list[Json] | dict[str, Json]
    lines: Lines
    key: str | None = None
    key_line: int = 0


@dataclass(slots=True)
class _Builder:
    """Turns one event stream into a :class:`Document`; used once."""

    _source: str
    _stack: list[_OpenCollection] = field(default_factory=list)
    _lines: Lines | None = None
    _roots: list[Json] = field(default_factory=list)

    def build(self, events: Iterator[yaml.Event]) -> Document:
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                raise self._error(event, "aliases (`*name`) are not read", "write the value out")
            if isinstance(event, yaml.DocumentStartEvent) and self._roots:
                raise self._error(event, "a second document begins", "keep one plan a file")
            if isinstance(event, yaml.ScalarEvent):
                self._take_scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                closed = self._stack.pop()
                self._put(closed.value, closed.lines)
        if not self._roots:
            raise _refusal(
                self._source, None, "the document is empty", "write a plan: a mapping with `title` and `steps`"
            )
        return Document(self._source, self._roots[0], self._lines)

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        if event.anchor is not None:
            raise self._error(event, "anchors (`&name`) are not read", "remove it")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if event.value in top.value:
                raise self._error(event, f"duplicate key {event.value!r} in one mapping", "keep one of the two")
            top.key, top.key_line = event.value, _line(event)
            return
        self._put(self._scalar(event), _line(event))

    def _open(self, event: yaml.CollectionStartEvent) -> None:
        if event.anchor is not None:
            raise self._error(event, "anchors (`&name`) are not read", "remove it")
        if event.tag is not None:
            raise self._error(event, f"the tag {event.tag!r} is not read", "remove it")
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(event, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            raise self._error(event, "a mapping key is not text", "write keys as plain words")
        # The line of a part with a key is the key's: a person looks for it there.
        line = top.key_line if top is not None and top.key is not None else _line(event)
        if isinstance(event, yaml.MappingStartEvent):
            self._stack.append(_OpenCollection({}, Lines(line, {})))
        else:
            self._stack.append(_OpenCollection([], Lines(line, [])))

    def _put(self, value: Json, lines: int | Lines) -> None:
        if not self._stack:
            self._roots.append(value)
            self._lines = lines if isinstance(lines, Lines) else Lines(lines)
            return
        top = self._stack[-1]
        parts = top.lines.parts
        if isinstance(top.value, list) and isinstance(parts, list):
            parts.append(lines)
            top.value.append(value)
        elif isinstance(top.value, dict) and isinstance(parts, dict) and top.key is not None:
            parts[top.key] = lines if isinstance(lines, Lines) else top.key_line
            top.value[top.key], top.key = value, None

    def _scalar(self, event: yaml.ScalarEvent) -> Json:
        if event.tag is not None:
            raise self._error(event, f"the tag {event.tag!r} is not read", "remove it, and quote what is text")
        text = event.value
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMERIC_STARTS:
            return text
        if _FLOAT.match(text):  # every integer, too
            return self._number(text, event)
        for reason, pattern in _FOREIGN_NUMBERS.items():
            if pattern.match(text):
                hint = "quote it if it is text; write a plain decimal number if it is one"
                raise self._error(event, f"{_shown(text)} cannot be used: {reason}", hint)
        return text

    def _number(self, text: str, event: yaml.ScalarEvent) -> Json:
        if _LEADING_ZERO.match(text):
            hint = "quote it if it is text; write it without leading zeros if it is a number"
            raise self._error(event, f"the integer {_shown(text)} begins with 0", hint)
        if _INT.match(text):
            # Counted first: the interpreter refuses to read a few thousand digits.
            number = int(text) if len(text.lstrip("+-")) <= _MAX_INT_DIGITS else None
            if number is None or abs(number) > MAX_SAFE_INTEGER:
                raise self._error(event, f"the integer {_shown(text)} is beyond 2^53", "quote it")
            return number
        value = float(text)
        if not math.isfinite(value):
            raise self._error(event, f"the number {_shown(text)} is too large for any reader", "quote it if it is text")
        return value

    def _error(self, event: yaml.Event, problem: str, hint: str) -> InvalidPlanError:
        return _refusal(self._source, event.start_mark, problem, hint)
