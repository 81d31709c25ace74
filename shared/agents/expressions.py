"""Expressions of the script language: JSON in which texts are templates and ``$name`` keys are operations.

A closed set of pure operations and no evaluation of code: what a script can compute is what is listed here. An
operation is a mapping whose first key starts with ``$``; its other keys are its parameters::

    $filter: ${hits.value.matches}
    as: hit
    where: {matches: ["${hit.line}", "TODO"]}

What an expression makes and how long it takes are counted (:mod:`soong.shared.engine.tasks.plan.budget`), before it
is made where it can become much larger than what it is made of. Regular expressions run in linear time
(:mod:`soong.shared.core.patterns`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias, cast

from soong.shared.agents.outline import python_outline
from soong.shared.core.errors import InvalidPatternError, TemplateError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.patterns import search, states_of
from soong.shared.engine.tasks.plan.budget import Budget
from soong.shared.engine.tasks.plan.template import as_text, joined, json_head, render_text

Names: TypeAlias = dict[str, Json]
"""What references may name; an operation that binds an item sets it and puts back what was there."""

MAX_PATH_CHARS = 4_096
_LIST_ITEM, _OBJECT_ITEM, _CONTAINER = 8, 64, 64
"""What a list's and an object's item and the collection itself take, in bytes."""
_CHARS_A_LOOKUP = 1_000
"""Of text that is searched or compared, in the time of one lookup."""
_JSON_CHARS_A_LOOKUP = 20
"""Of lists and objects that are compared part by part."""
_STATES_A_LOOKUP = 200
"""Of a regular expression, each tried at one character: what RE2 does in the worst case."""


@dataclass(frozen=True, slots=True)
class Operation:
    """``needs`` and ``takes`` are its parameters besides its own value; ``binds`` says that ``as`` names an item."""

    run: Callable[[JsonObject, Json, Names, Budget], Json]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    binds: bool = False


def evaluate(value: Json, names: Names, budget: Budget) -> Json:
    """Return the value of an expression.

    Raises:
        TemplateError: a reference that names nothing, or an operation on a value of the wrong kind.
        BudgetExceededError: it would make too much, or take too long.
    """
    if isinstance(value, str):
        return render_text(value, names, budget)
    budget.step()
    if isinstance(value, Mapping):
        first = next(iter(value), "")
        if first.startswith("$"):
            operation = OPERATIONS.get(first)
            if operation is None:
                raise TemplateError(first, f"there is no such operation (there are: {', '.join(OPERATIONS)})")
            return operation.run(value, value[first], names, budget)
        budget.spend(_CONTAINER + _OBJECT_ITEM * len(value))
        return {key: evaluate(item, names, budget) for key, item in value.items()}
    if isinstance(value, Sequence):
        budget.spend(_CONTAINER + _LIST_ITEM * len(value))
        return [evaluate(item, names, budget) for item in value]
    return value


def holds(condition: Json, names: Names, budget: Budget) -> bool:
    """Say whether a condition holds: a value by its truth, or a mapping of one comparison.

    Comparisons: ``eq ne lt le gt ge in matches`` take a list of two; ``all any`` a list of conditions; ``not`` one;
    ``empty`` a value. Raises: as :func:`evaluate`.
    """
    budget.step()
    if isinstance(condition, Mapping) and len(condition) == 1:
        (name, operand), *_ = condition.items()
        if name in _JOINED:
            return _JOINED[name](holds(each, names, budget) for each in as_list(operand, name))
        if name == "not":
            return not holds(operand, names, budget)
        if name == "empty":
            return not evaluate(operand, names, budget)
        if name in _COMPARISONS:
            left, right = (evaluate(each, names, budget) for each in _two(operand, name))
            return _COMPARISONS[name](left, right, budget)
        if not name.startswith("$"):
            raise TemplateError(name, f"there is no such comparison (there are: {', '.join(sorted(CONDITIONS))})")
    return bool(evaluate(condition, names, budget))


def as_list(value: Json, name: str) -> Sequence[Json]:
    """Return a list; null is an empty one. Raises: TemplateError."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TemplateError(name, f"it needs a list and got {json_head(value, 80)}")
    return value


def _two(value: Json, name: str) -> Sequence[Json]:
    pair = as_list(value, name)
    if len(pair) != 2:
        raise TemplateError(name, "it compares a list of two values")
    return pair


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Json, Json, Budget], bool]:
    def check(left: Json, right: Json, _budget: Budget) -> bool:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TemplateError("comparison", f"{json_head(left, 40)} and {json_head(right, 40)} are not both numbers")
        return compare(left, right)

    return check


def _equal(left: Json, right: Json, budget: Budget) -> bool:
    _count_comparison(left, right, budget)
    return left == right


def _is_in(left: Json, right: Json, budget: Budget) -> bool:
    if isinstance(right, str):
        budget.step(len(right) // _CHARS_A_LOOKUP)
        return _text_of(left, budget) in right
    if isinstance(right, Mapping):
        return isinstance(left, str) and left in right
    items = as_list(right, "in")
    for item in items:
        _count_comparison(left, item, budget)
        if left == item:
            return True
    return False


def _count_comparison(left: Json, right: Json, budget: Budget) -> None:
    """Count a comparison by the smaller of two values: where it ends, the other is different."""
    work = 1
    if isinstance(left, str) and isinstance(right, str):
        work += min(len(left), len(right)) // _CHARS_A_LOOKUP
    elif isinstance(left, Mapping | Sequence) and isinstance(right, Mapping | Sequence):
        work += min(budget.size_of(left), budget.size_of(right)) // _JSON_CHARS_A_LOOKUP
    budget.step(work)


def _matches(left: Json, right: Json, budget: Budget) -> bool:
    text, pattern = _text_of(left, budget), _text_of(right, budget)
    try:
        budget.step(1 + len(text) * states_of(pattern) // _STATES_A_LOOKUP)
        return search(pattern, text)
    except InvalidPatternError as error:
        raise TemplateError(pattern, str(error)) from error


def _text_of(value: Json, budget: Budget) -> str:
    """Return a value as text. Raises: BudgetExceededError, before it is made."""
    if not isinstance(value, str):
        budget.spend_text(budget.size_of(value))
    return as_text(value)


_COMPARISONS: Mapping[str, Callable[[Json, Json, Budget], bool]] = {
    "eq": _equal,
    "ne": lambda left, right, budget: not _equal(left, right, budget),
    "lt": _ordered(lambda left, right: left < right),
    "le": _ordered(lambda left, right: left <= right),
    "gt": _ordered(lambda left, right: left > right),
    "ge": _ordered(lambda left, right: left >= right),
    "in": _is_in,
    "matches": _matches,
}
_JOINED: Mapping[str, Callable[..., bool]] = {"all": all, "any": any}
CONDITIONS = frozenset({*_COMPARISONS, *_JOINED, "not", "empty"})


def _each(call: JsonObject, operand: Json, names: Names, budget: Budget, take: Callable[[Json], None]) -> None:
    """Bind each item of a list in turn while ``take`` looks at it."""
    item_name = str(call.get("as", "item"))
    is_shadowing, before = item_name in names, names.get(item_name)
    for item in as_list(evaluate(operand, names, budget), next(iter(call))):
        budget.step()
        budget.spend(_LIST_ITEM)
        names[item_name] = item
        take(item)
    if is_shadowing:
        names[item_name] = before
    else:
        names.pop(item_name, None)


def _map(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    found: list[Json] = []
    _each(call, operand, names, budget, lambda _: found.append(evaluate(call["to"], names, budget)))
    return found


def _filter(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    found: list[Json] = []

    def take(item: Json) -> None:
        if holds(call["where"], names, budget):
            found.append(item)

    _each(call, operand, names, budget, take)
    return found


def _count(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    if "where" not in call:
        return len(as_list(evaluate(operand, names, budget), "$count"))
    return len(cast("Sequence[Json]", _filter(call, operand, names, budget)))


def _concat(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    lists = [as_list(part, "$concat") for part in as_list(evaluate(operand, names, budget), "$concat")]
    budget.spend(_CONTAINER + _LIST_ITEM * sum(map(len, lists)))
    return [item for part in lists for item in part]


def _sort(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    """Sort by the fields that ``by`` lists; numbers before texts, so that any mixture has an order."""
    fields = [str(one) for one in as_list(call.get("by"), "$sort")]

    def key(item: Json) -> tuple[tuple[bool, float, str], ...]:
        parts = [item.get(one) for one in fields] if fields and isinstance(item, Mapping) else [item]
        budget.step(1 + len(parts))
        budget.spend(2 * _CONTAINER * (1 + len(parts)))
        return tuple(
            (False, float(part), "") if isinstance(part, int | float) else (True, 0.0, _text_of(part, budget))
            for part in parts
        )

    return sorted(as_list(evaluate(operand, names, budget), "$sort"), key=key)


def _unique(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    items = as_list(evaluate(operand, names, budget), "$unique")
    for item in items:
        budget.step()
        budget.spend(_OBJECT_ITEM + budget.size_of(item))
    return list({dump(item): item for item in reversed(items)}.values())[::-1]


def _join(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    separator = as_text(call.get("with", "\n"))
    return joined(as_list(evaluate(operand, names, budget), "$join"), separator, budget)


def _if(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    return evaluate(call["then"] if holds(operand, names, budget) else call.get("else"), names, budget)


def _sum(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    numbers = as_list(evaluate(operand, names, budget), "$sum")
    budget.step(len(numbers) // 8)
    if not all(isinstance(one, int | float) for one in numbers):
        raise TemplateError("$sum", "it adds numbers only")
    return sum(cast("Sequence[int]", numbers))


def _merge(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    merged: dict[str, Json] = {}
    for part in as_list(evaluate(operand, names, budget), "$merge"):
        if not isinstance(part, Mapping):
            raise TemplateError("$merge", "it merges objects only")
        budget.spend(_CONTAINER + _OBJECT_ITEM * len(part))
        merged.update(part)
    return merged


def _take(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    limit = call["first"]
    taken = as_list(evaluate(operand, names, budget), "$take")[: limit if isinstance(limit, int) else 0]
    budget.spend(_CONTAINER + _LIST_ITEM * len(taken))
    return list(taken)


def _part_of(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    text = _text_of(evaluate(operand, names, budget), budget)
    if len(text) > MAX_PATH_CHARS:
        raise TemplateError("$path", f"the path has {len(text):,} characters; at most {MAX_PATH_CHARS:,} are read")
    path = PurePosixPath(text)
    parts = {"name": path.name, "stem": path.stem, "parent": str(path.parent), "suffix": path.suffix}
    if call["get"] not in parts:
        raise TemplateError("$path", f"it gets one of {', '.join(parts)}")
    return parts[str(call["get"])]


def _replace(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    text, old, new = (_text_of(evaluate(each, names, budget), budget) for each in (operand, call["old"], call["new"]))
    if not old:
        return text
    budget.spend_text(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _strip(call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    """Take a prefix and a suffix away, where they are."""
    given = (operand, call.get("prefix"), call.get("suffix"))
    text, prefix, suffix = (_text_of(evaluate(each, names, budget), budget) for each in given)
    budget.spend(2 * len(text))
    return text.removeprefix(prefix).removesuffix(suffix)


def _trim(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    text = _text_of(evaluate(operand, names, budget), budget)
    budget.spend(len(text))
    return text.strip()


def _outline(_call: JsonObject, operand: Json, names: Names, budget: Budget) -> Json:
    source = _text_of(evaluate(operand, names, budget), budget)
    budget.step(len(source) // 8)
    found = python_outline(source)
    budget.spend(budget.size_of(found))
    return found


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
