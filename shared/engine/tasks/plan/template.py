"""References in plans: ``${survey.output.packages}``, looked up and never evaluated.

A string that is exactly one reference keeps the JSON type of what it names; otherwise references are written into the
text. The result is never parsed again, so a value that contains ``${`` stays unchanged. ``$${`` writes a literal
``${``. A reference may end in pure filters: ``length``, ``json``, ``first``, ``last``, ``join("…")``,
``default(<json>)``; the last also replaces a path that is missing.

A budget (:mod:`soong.shared.engine.tasks.plan.budget`) bounds the output; parsing is linear in the text.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import TypeAlias

from soong.shared.core.errors import InvalidJsonError, TemplateError
from soong.shared.core.jsontext import Json, dump, parse_strict
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.problems import Path, listed

Scope: TypeAlias = Mapping[str, Json]

_SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile(r"\[(?:(-?[0-9]{1,9})|\"([^\"]*)\")\]")
_FILTER = re.compile(r"([a-z]+)\s*(?:\((.*)\))?\s*\Z", re.DOTALL)
MAX_PARTS = 64
"""Parts of a path."""
MAX_ROOT_CHARS = 1_000
"""Characters of the name at its root: ids and names of items are shorter."""
MAX_FILTERS = 16
MAX_REFERENCES = 1_000
"""References in one text."""
_CACHED_CHARS = 1_000
"""Longer templates are parsed each time: thousands of them would fill the memory."""
_CHARS_A_LOOKUP, _LOOKUPS_A_REFERENCE = 500, 3
"""The cost of parsing, in lookups."""
_ITEMS_A_LOOKUP = 8
"""Items that are joined in the time of one lookup."""
_FILTERS = {"length": False, "json": False, "first": False, "last": False, "join": True, "default": True}
"""Name of each filter, and whether it takes an argument."""


class Filter(Value):
    """One filter of a reference, such as ``default: 3``."""

    name: str
    argument: Json = None


class Reference(Value):
    """``parts`` is the path, first part the root; ``text`` the text between the braces.

    ``roots`` are the names that the root may have, longest first: a step's id may itself contain dots.
    """

    text: str
    parts: tuple[str | int, ...]
    filters: tuple[Filter, ...] = ()
    roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, parts: tuple[str | int, ...], filters: tuple[Filter, ...]) -> "Reference":
        words = tuple(takewhile(lambda part: isinstance(part, str), parts))
        roots = accumulate(map(str, words), lambda name, word: f"{name}.{word}")
        return cls(text, parts, filters, tuple(takewhile(lambda name: len(name) <= MAX_ROOT_CHARS, roots))[::-1])

    def root_in(self, names: Container[str]) -> str | None:
        """Return the longest root among ``names``."""
        for name in self.roots:
            if name in names:
                return name
        return None

    def look_up(self, scope: Scope, budget: ExpansionBudget) -> Json:
        """Return what the reference names.
        Raises: TemplateError, a part of the path is missing, or a filter cannot be applied; BudgetExceededError, a
        filter would make too large a text.
        """
        budget.step(1 + len(self.parts) // 4 + len(self.filters))
        try:
            value = self._walk(scope)
        except TemplateError:
            if not any(item.name == "default" for item in self.filters):
                raise
            value = None
        for item in self.filters:
            value = self._apply(item, value, budget)
        return value

    def _walk(self, scope: Scope) -> Json:
        root = self.root_in(scope)
        if root is None:
            raise TemplateError(self.text, f"{self.parts[0]!r} is not known here (known: {listed(scope)})")
        value = scope[root]
        for part in self.parts[root.count(".") + 1 :]:
            value = self._step_into(value, part)
        return value

    def _step_into(self, value: Json, part: str | int) -> Json:
        if isinstance(part, str) and isinstance(value, Mapping):
            if part in value:
                return value[part]
            raise TemplateError(self.text, f"there is no {part!r} (there is: {listed(value)})")
        if isinstance(part, int) and isinstance(value, Sequence) and not isinstance(value, str):
            if -len(value) <= part < len(value):
                return value[part]
            raise TemplateError(self.text, f"there is no item [{part}] in a list of {len(value)}")
        raise TemplateError(self.text, f"cannot look up {part!r} in {kind_of(value)}")

    def _apply(self, item: Filter, value: Json, budget: ExpansionBudget) -> Json:
        match item.name:
            case "default":
                return item.argument if value is None else value
            case "json":
                budget.spend_text(budget.size_of(value))
                text = dump(value)
                budget.check_text(len(text))  # escapes count here: six characters for one
                return text
            case "length" if isinstance(value, str | Sequence | Mapping):
                return len(value)
            case "join" if isinstance(value, Sequence) and not isinstance(value, str):
                return joined(value, str(item.argument), budget)
            case "first" | "last" if isinstance(value, Sequence) and value:
                return value[0 if item.name == "first" else -1]
            case _:
                raise TemplateError(self.text, f"{item.name!r} cannot be taken of {kind_of(value)}")


def parse_template(text: str) -> tuple[str | Reference, ...]:
    """Cut a string into literal text and references.
    Raises: TemplateError, a reference that is not closed or not of the form described above, or there are too many.
    """
    return _parsed_once(text) if len(text) <= _CACHED_CHARS else _parsed(text)


def _parsed(text: str) -> tuple[str | Reference, ...]:
    pieces: list[str | Reference] = []
    position = references_read = 0
    while (start := text.find("${", position)) >= 0:
        if start > position and text[start - 1] == "$":
            pieces.append(text[position : start - 1] + "${")
            position = start + 2
            continue
        end = _closing(text, start)
        if start > position:
            pieces.append(text[position:start])
        references_read += 1
        if references_read > MAX_REFERENCES:
            raise TemplateError(text[start + 2 : end], f"the text has more than {MAX_REFERENCES} references")
        pieces.append(_parse_reference(text[start + 2 : end]))
        position = end + 1
    if position < len(text) or not pieces:
        pieces.append(text[position:])
    return tuple(pieces)


_parsed_once = lru_cache(maxsize=4096)(_parsed)


def _parsed_within(text: str, budget: ExpansionBudget) -> tuple[str | Reference, ...]:
    if len(text) <= _CACHED_CHARS:
        return parse_template(text)
    budget.step(len(text) // _CHARS_A_LOOKUP)
    pieces = parse_template(text)
    budget.step(len(pieces) * _LOOKUPS_A_REFERENCE // 2)
    return pieces


def render(value: Json, scope: Scope, budget: ExpansionBudget) -> Json:
    """Return ``value`` with every reference in it looked up, once. Mapping keys are not templates.

    A string that is exactly one reference gives the value itself, which is not counted: it is there already.
    Raises: TemplateError, a reference that is malformed or names nothing; BudgetExceededError, a text becomes too long,
    or the result too large.
    """
    if isinstance(value, str):
        return render_text(value, scope, budget)
    if isinstance(value, Mapping):
        return {key: render(item, scope, budget) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [render(item, scope, budget) for item in value]
    return value


def render_text(text: str, scope: Scope, budget: ExpansionBudget) -> Json:
    """Return one string with its references looked up; the JSON value itself when it is exactly one reference.
    Raises: as :func:`render`.
    """
    if "${" not in text:
        return text
    pieces = _parsed_within(text, budget)
    if len(pieces) == 1 and isinstance(pieces[0], Reference):
        return pieces[0].look_up(scope, budget)
    written: list[str] = []
    size = 0
    for piece in pieces:
        # Counted before it is written: a piece can be any value of the task.
        found = piece if isinstance(piece, str) else piece.look_up(scope, budget)
        size += len(found) if isinstance(found, str) else budget.size_of(found)
        budget.check_text(size)
        written.append(as_text(found))
    budget.spend(size)
    return "".join(written)


def render_head(text: str, scope: Scope, budget: ExpansionBudget, most: int) -> str:
    """Return the first ``most`` characters of :func:`render_text` as text; the rest is not made.
    Raises: as :func:`render`.
    """
    if "${" not in text:
        return text[:most]
    written = ""
    for piece in _parsed_within(text, budget):
        if len(written) >= most:
            break
        found = piece if isinstance(piece, str) else piece.look_up(scope, budget)
        written += head_of(found, most - len(written))
    return written


def head_of(value: Json, most: int) -> str:
    """Return the first ``most`` characters of a value's text, and make no more of it than that."""
    return (value or "")[:most] if isinstance(value, str) or value is None else json_head(value, most)


def json_head(value: Json, most: int) -> str:
    """Return the first ``most`` characters of a value's JSON, and make no more of it than that."""
    written = ""
    for piece in _pieces(value, most):
        written += piece
        if len(written) >= most:
            break
    return written[:most]


def _pieces(value: Json, most: int) -> Iterator[str]:
    """Yield the JSON text of a value piece by piece; a string is cut to ``most`` characters."""
    if isinstance(value, str):
        yield dump(value[:most])
    elif isinstance(value, Mapping):
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else '{'}{dump(key[:most])}:"
            yield from _pieces(item, most)
        yield "}" if value else "{}"
    elif isinstance(value, Sequence):
        for number, item in enumerate(value):
            yield "," if number else "["
            yield from _pieces(item, most)
        yield "]" if value else "[]"
    else:
        yield dump(value)


def joined(items: Sequence[Json], separator: str, budget: ExpansionBudget) -> str:
    """Return items as one text. Raises: BudgetExceededError, before it is made."""
    budget.step(len(items) // _ITEMS_A_LOOKUP)
    size = len(separator) * max(0, len(items) - 1)
    for one in items:
        size += len(one) if isinstance(one, str) else budget.size_of(one)
        budget.check_text(size)
    budget.spend(size)
    return separator.join(as_text(one) for one in items)


def references(value: Json, path: Path = ()) -> Iterator[tuple[Path, Reference]]:
    """Yield every reference in a JSON value with the place of its string. Raises: TemplateError for a malformed one."""
    if isinstance(value, str):
        if "${" in value:
            yield from ((path, piece) for piece in parse_template(value) if isinstance(piece, Reference))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from references(item, (*path, key))
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from references(item, (*path, index))


def as_text(value: Json) -> str:
    """Return a value as it is written into text: strings bare, null as nothing, the rest as compact JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump(value)


def _closing(text: str, start: int) -> int:
    """Return the index of the brace that closes the reference; quoted braces do not count."""
    is_quoted = False
    for index in range(start + 2, len(text)):
        if text[index] == '"' and text[index - 1] != "\\":
            is_quoted = not is_quoted
        elif text[index] == "}" and not is_quoted:
            return index
    raise TemplateError(
        text[start + 2 :][:60], "the reference is not closed; add `}` or write `$${` for a literal `${`"
    )


def _parse_reference(text: str) -> Reference:
    path, *filters = _split_filters(text)
    parsed = tuple(_parse_filter(item, text) for item in filters)
    return Reference.of(text.strip(), _parse_path(path.strip(), text), parsed)


def _split_filters(text: str) -> list[str]:
    bars, is_quoted = [-1], False
    for place, character in enumerate(text):
        is_quoted ^= character == '"'
        if character == "|" and not is_quoted:
            bars.append(place)
    if len(bars) > MAX_FILTERS + 1:
        raise TemplateError(text.strip(), f"it has {len(bars) - 1} filters; at most {MAX_FILTERS} are read")
    return [text[start + 1 : end] for start, end in zip(bars, (*bars[1:], len(text)), strict=True)]


def _parse_path(path: str, text: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    position = 0
    while position < len(path):
        pattern = _INDEX if parts and path[position] == "[" else _SEGMENT
        position += 1 if parts and path[position] == "." else 0
        found = pattern.match(path, position)
        if found is None:
            break
        parts.append(_part(found))
        if len(parts) > MAX_PARTS:
            raise TemplateError(text.strip(), f"its path has more than {MAX_PARTS} parts")
        position = found.end()
        if position < len(path) and path[position] not in ".[":
            break
    if not parts or position < len(path) or path.endswith("."):
        raise TemplateError(text.strip(), "it is not a path such as `inputs.name` or `step.output.items[0]`")
    return tuple(parts)


def _part(found: re.Match[str]) -> str | int:
    if found.re is _SEGMENT:
        return found.group()
    return int(found.group(1)) if found.group(1) is not None else found.group(2)


def _parse_filter(item: str, text: str) -> Filter:
    found = _FILTER.match(item.strip())
    if found is None or found.group(1) not in _FILTERS:
        raise TemplateError(text.strip(), f"{item.strip()!r} is not a filter (there are: {', '.join(_FILTERS)})")
    name, argument = found.group(1), found.group(2)
    if (argument is not None) != _FILTERS[name]:
        raise TemplateError(text.strip(), f"the filter {name!r} takes {'an' if _FILTERS[name] else 'no'} argument")
    try:
        return Filter(name, None if argument is None else parse_strict(argument))
    except InvalidJsonError as error:
        raise TemplateError(text.strip(), f"the argument of {name!r} is not JSON: {error}") from None


def kind_of(value: Json) -> str:
    """Return what sort of JSON a value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case Mapping():
            return "an object"
        case _:
            return "a list"
