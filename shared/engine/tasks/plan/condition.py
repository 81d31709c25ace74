"""Conditions of plans: ``${look.output.count} > 0 and not ${inputs.quick}`` (CTL-01). Read, never executed.

Operands are references, JSON values, lists, and ``length(…)`` of a text, a list or an object. Operators are those of
comparison, ``in`` and ``not in``, ``and``, ``or`` and ``not``, with parentheses. A value alone counts as false when it
is null, false, 0 or empty.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeAlias
from unicodedata import normalize

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.template import Reference, Scope, kind_of, parse_template

MAX_CHARS: Final = 1_000
_MARK: Final = "soong_reference_"
_WORDS: Final[Mapping[str, Json]] = {"true": True, "false": False, "null": None}
_UNREADABLE: Final = "write comparisons, `and`, `or`, `not`, `in` and `length(…)`, such as `${look.output.count} > 0`"


Found: TypeAlias = Mapping[str, Json]
"""The values of a condition's references, by their names in its text."""
Reading: TypeAlias = Callable[[Found], Json]
Test: TypeAlias = Callable[[Any, Any], bool]


class Condition(Value):
    """A condition that was read. ``references`` are its operands from the plan, in order."""

    references: tuple[Reference, ...]
    reading: Reading

    def holds(self, scope: Scope, budget: ExpansionBudget) -> bool:
        """Say whether it is true. Raises: TemplateError, a reference names nothing, or values cannot be compared."""
        found = {f"{_MARK}{at}": reference.look_up(scope, budget) for at, reference in enumerate(self.references)}
        return bool(self.reading(found))


@lru_cache(maxsize=1024)
def condition(text: str) -> Condition:
    """Read a condition. Raises: TemplateError, with what to write."""
    if len(text) > MAX_CHARS:
        raise _refused(f"it has more than {MAX_CHARS} characters; decide it in a step, and compare that step's output")
    pieces = parse_template(text)
    references = tuple(piece for piece in pieces if isinstance(piece, Reference))
    if any(isinstance(piece, str) and _MARK in normalize("NFKC", piece) for piece in pieces):  # as ast reads names
        raise _refused(_UNREADABLE)
    numbers = iter(range(len(references)))
    written = "".join(piece if isinstance(piece, str) else f" {_MARK}{next(numbers)} " for piece in pieces)
    try:
        return Condition(references, _reading(ast.parse(written.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(_UNREADABLE) from None


def _refused(problem: str) -> TemplateError:
    return TemplateError("", problem)


def _reading(node: ast.expr) -> Reading:
    """Return how the value of one part is found. Raises: TemplateError, a condition does not have it."""
    match node:
        case ast.Constant() | ast.Name() | ast.List():
            return _operand(node)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return lambda _: -number
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            denied = _reading(operand)
            return lambda found: not denied(found)
        case ast.BoolOp(op=operation, values=parts):
            read, combine = [_reading(part) for part in parts], all if isinstance(operation, ast.And) else any
            return lambda found: combine(part(found) for part in read)
        case ast.Compare(left=left, ops=operators, comparators=others):
            return _comparison(operators, [_reading(one) for one in (left, *others)])
        case ast.Call(func=ast.Name(id="length"), args=[argument], keywords=[]):
            measured = _reading(argument)
            return lambda found: _length(measured(found))
    raise _refused(_UNREADABLE)


def _operand(node: ast.Constant | ast.Name | ast.List) -> Reading:
    match node:
        case ast.Constant(value=str(value)) if _MARK in value:
            raise _refused("a reference is in quotes; write it without them")
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return lambda _: value
        case ast.Name(id=name) if name in _WORDS or name.startswith(_MARK):
            return lambda found: found[name] if name in found else _WORDS[name]
        case ast.Name(id=name):
            raise _refused(
                f'{name!r} is not known; write `${{{name}}}` for a value of the plan, or "{name}" for a text'
            )
        case ast.List(elts=elements):
            items = [_reading(one) for one in elements]
            return lambda found: [item(found) for item in items]
    raise _refused(_UNREADABLE)


def _comparison(operators: Sequence[ast.cmpop], parts: Sequence[Reading]) -> Reading:
    tests = [_TESTS[type(one)] for one in operators if type(one) in _TESTS]
    if len(tests) < len(operators):
        raise _refused(_UNREADABLE)

    def compared(found: Found) -> bool:
        values = [part(found) for part in parts]
        return all(test(*pair) for test, pair in zip(tests, pairwise(values), strict=True))

    return compared


def _length(value: Json) -> int:
    if isinstance(value, str | Sequence | Mapping):
        return len(value)
    raise _refused(f"`length` cannot be taken of {kind_of(value)}")


def _equal(left: Json, right: Json) -> bool:
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _contained(item: Json, holder: Json) -> bool:
    match holder:
        case str() if isinstance(item, str):
            return item in holder
        case list() | tuple():
            return any(_equal(one, item) for one in holder)
        case Mapping():
            return isinstance(item, str) and item in holder
    raise _refused(f"`in` cannot look for {kind_of(item)} in {kind_of(holder)}")


def _ordered(test: Test) -> Test:
    def compared(left: Json, right: Json) -> bool:
        kinds = {kind_of(left), kind_of(right)}
        if kinds not in ({"a number"}, {"a text"}):
            raise _refused(f"{' and '.join(sorted(kinds))} cannot be put in an order")
        return test(left, right)

    return compared


_TESTS: Final[Mapping[type[ast.cmpop], Test]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
    ast.In: _contained,
    ast.NotIn: lambda item, holder: not _contained(item, holder),
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
}
