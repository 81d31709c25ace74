"""Expressions of the script language: JSON in which texts are templates and ``$name`` keys are operations.

A closed set of pure operations and no evaluation of code: what a script can compute is what is listed here. An
operation is a mapping whose first key starts with ``$``; its other keys are its parameters::

    $filter: ${hits.value.matches}
    as: hit
    where: {matches: ["${hit.line}", "TODO"]}
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeAlias, cast

from shared.agents.outline import python_outline
from shared.errors import TemplateError
from shared.jsontext import Json, JsonObject, dump
from shared.tasks.template import as_text, render_text

Names: TypeAlias = dict[str, Json]
"""What references may name; an operation that binds an item sets it and puts back what was there."""


@dataclass(frozen=True, slots=True)
class Operation:
    """``needs`` and ``takes`` are its parameters besides its own value; ``binds`` says that ``as`` names an item."""

    run: Callable[[JsonObject, Json, Names], Json]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    binds: bool = False


def evaluate(value: Json, names: Names) -> Json:
    """Return the value of an expression.

    Raises:
        TemplateError: a reference that names nothing, or an operation on a value of the wrong kind.
    """
    if isinstance(value, str):
        return render_text(value, names)
    if isinstance(value, Mapping):
        first = next(iter(value), "")
        if first.startswith("$"):
            operation = OPERATIONS.get(first)
            if operation is None:
                raise TemplateError(first, f"there is no such operation (there are: {', '.join(OPERATIONS)})")
            return operation.run(value, value[first], names)
        return {key: evaluate(item, names) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [evaluate(item, names) for item in value]
    return value


def holds(condition: Json, names: Names) -> bool:
    """Say whether a condition holds: a value by its truth, or a mapping of one comparison.

    Comparisons: ``eq ne lt le gt ge in matches`` take a list of two; ``all any`` a list of conditions; ``not`` one;
    ``empty`` a value.
    """
    if isinstance(condition, Mapping) and len(condition) == 1:
        (name, operand), *_ = condition.items()
        if name in _JOINED:
            return _JOINED[name](holds(each, names) for each in as_list(operand, name))
        if name == "not":
            return not holds(operand, names)
        if name == "empty":
            return not evaluate(operand, names)
        if name in _COMPARISONS:
            left, right = (evaluate(each, names) for each in _two(operand, name))
            return _COMPARISONS[name](left, right)
        if not name.startswith("$"):
            raise TemplateError(name, f"there is no such comparison (there are: {', '.join(sorted(CONDITIONS))})")
    return bool(evaluate(condition, names))


def as_list(value: Json, name: str) -> Sequence[Json]:
    """Return a list; null is an empty one. Raises: TemplateError."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TemplateError(name, f"it needs a list and got {dump(value)[:80]}")
    return value


def _two(value: Json, name: str) -> Sequence[Json]:
    pair = as_list(value, name)
    if len(pair) != 2:
        raise TemplateError(name, "it compares a list of two values")
    return pair


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Json, Json], bool]:
    def check(left: Json, right: Json) -> bool:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TemplateError("comparison", f"{dump(left)[:40]} and {dump(right)[:40]} are not both numbers")
        return compare(left, right)

    return check


def _is_in(left: Json, right: Json) -> bool:
    if isinstance(right, str):
        return as_text(left) in right
    if isinstance(right, Mapping):
        return left in right
    return left in as_list(right, "in")


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise TemplateError(text, f"it is not a regular expression: {error}") from error


_COMPARISONS: Mapping[str, Callable[[Json, Json], bool]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": _ordered(lambda left, right: left < right),
    "le": _ordered(lambda left, right: left <= right),
    "gt": _ordered(lambda left, right: left > right),
    "ge": _ordered(lambda left, right: left >= right),
    "in": _is_in,
    "matches": lambda left, right: _pattern(as_text(right)).search(as_text(left)) is not None,
}
_JOINED: Mapping[str, Callable[..., bool]] = {"all": all, "any": any}
CONDITIONS = frozenset({*_COMPARISONS, *_JOINED, "not", "empty"})


def _each(call: JsonObject, operand: Json, names: Names, take: Callable[[Json], None]) -> None:
    """Bind each item of a list in turn while ``take`` looks at it."""
    item_name = str(call.get("as", "item"))
    is_shadowing, before = item_name in names, names.get(item_name)
    for item in as_list(evaluate(operand, names), next(iter(call))):
        names[item_name] = item
        take(item)
    if is_shadowing:
        names[item_name] = before
    else:
        names.pop(item_name, None)


def _map(call: JsonObject, operand: Json, names: Names) -> Json:
    found: list[Json] = []
    _each(call, operand, names, lambda _: found.append(evaluate(call["to"], names)))
    return found


def _filter(call: JsonObject, operand: Json, names: Names) -> Json:
    found: list[Json] = []

    def take(item: Json) -> None:
        if holds(call["where"], names):
            found.append(item)

    _each(call, operand, names, take)
    return found


def _count(call: JsonObject, operand: Json, names: Names) -> Json:
    if "where" not in call:
        return len(as_list(evaluate(operand, names), "$count"))
    return len(cast("Sequence[Json]", _filter(call, operand, names)))


def _concat(_call: JsonObject, operand: Json, names: Names) -> Json:
    lists = as_list(evaluate(operand, names), "$concat")
    return [item for part in lists for item in as_list(part, "$concat")]


def _sort(call: JsonObject, operand: Json, names: Names) -> Json:
    """Sort by the fields that ``by`` lists; numbers before texts, so that any mixture has an order."""
    fields = [str(one) for one in as_list(call.get("by"), "$sort")]

    def key(item: Json) -> tuple[tuple[bool, float, str], ...]:
        parts = [item.get(one) for one in fields] if fields and isinstance(item, Mapping) else [item]
        return tuple(
            (False, float(part), "") if isinstance(part, int | float) else (True, 0.0, as_text(part)) for part in parts
        )

    return sorted(as_list(evaluate(operand, names), "$sort"), key=key)


def _unique(_call: JsonObject, operand: Json, names: Names) -> Json:
    items = as_list(evaluate(operand, names), "$unique")
    return list({dump(item): item for item in reversed(items)}.values())[::-1]


def _join(call: JsonObject, operand: Json, names: Names) -> Json:
    separator = as_text(call.get("with", "\n"))
    return separator.join(as_text(item) for item in as_list(evaluate(operand, names), "$join"))


def _if(call: JsonObject, operand: Json, names: Names) -> Json:
    return evaluate(call["then"] if holds(operand, names) else call.get("else"), names)


def _sum(_call: JsonObject, operand: Json, names: Names) -> Json:
    numbers = as_list(evaluate(operand, names), "$sum")
    if not all(isinstance(one, int | float) for one in numbers):
        raise TemplateError("$sum", "it adds numbers only")
    return sum(cast("Sequence[int]", numbers))


def _merge(_call: JsonObject, operand: Json, names: Names) -> Json:
    merged: dict[str, Json] = {}
    for part in as_list(evaluate(operand, names), "$merge"):
        if not isinstance(part, Mapping):
            raise TemplateError("$merge", "it merges objects only")
        merged |= part
    return merged


def _take(call: JsonObject, operand: Json, names: Names) -> Json:
    limit = call["first"]
    return list(as_list(evaluate(operand, names), "$take"))[: limit if isinstance(limit, int) else 0]


def _part_of(call: JsonObject, operand: Json, names: Names) -> Json:
    path = PurePosixPath(as_text(evaluate(operand, names)))
    parts = {"name": path.name, "stem": path.stem, "parent": str(path.parent), "suffix": path.suffix}
    if call["get"] not in parts:
        raise TemplateError("$path", f"it gets one of {', '.join(parts)}")
    return parts[str(call["get"])]


def _replace(call: JsonObject, operand: Json, names: Names) -> Json:
    text, old = as_text(evaluate(operand, names)), as_text(evaluate(call["old"], names))
    return text.replace(old, as_text(evaluate(call["new"], names))) if old else text


def _strip(call: JsonObject, operand: Json, names: Names) -> Json:
    """Take a prefix and a suffix away, where they are."""
    text = as_text(evaluate(operand, names)).removeprefix(as_text(evaluate(call.get("prefix"), names)))
    return text.removesuffix(as_text(evaluate(call.get("suffix"), names)))


def _trim(_call: JsonObject, operand: Json, names: Names) -> Json:
    return as_text(evaluate(operand, names)).strip()


def _outline(_call: JsonObject, operand: Json, names: Names) -> Json:
    return python_outline(as_text(evaluate(operand, names)))


OPERATIONS: Mapping[str, Operation] = {
    "$map": Operation(_map, needs=("to",), takes=("as",), binds=True),
    "$filter": Operation(_filter, needs=("where",), takes=("as",), binds=True),
    "$count": Operation(_count, takes=("as", "where"), binds=True),
    "$concat": Operation(_concat),
    "$sort": Operation(_sort, takes=("by",)),
    "$unique": Operation(_unique),
    "$join": Operation(_join, takes=("with",)),
    "$if": Operation(_if, needs=("then",), takes=("else",)),
    "$sum": Operation(_sum),
    "$merge": Operation(_merge),
    "$take": Operation(_take, needs=("first",)),
    "$path": Operation(_part_of, needs=("get",)),
    "$replace": Operation(_replace, needs=("old", "new")),
    "$strip": Operation(_strip, takes=("prefix", "suffix")),
    "$trim": Operation(_trim),
    "$python_outline": Operation(_outline),
}
