"""The future result of a step while a plan is built: a reference such as ``${split.output}``, with its type.

It is written in place of the value: as an argument of another step, inside a list or a mapping, in an f-string. Its
fields and items are references too, and a comparison with one is a condition. Whatever else would need the value itself
is refused, with what to do instead.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, get_args, get_origin, is_typeddict

from pydantic_core import to_jsonable_python

from soong.shared.core.jsontext import dump
from soong.shared.engine.tasks.plan.fields import RESULT_FIELDS
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.python_plan.signature import refused

MARK: Final = "\0"
"""Around the number of a reference in a text; no text of a plan has it otherwise."""
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_NOT_KNOWN: Final = "write a step that is given the result and does it there"


class _Compared:
    """The equality of what is not known yet: a condition, not a boolean, as in query builders."""

    def __eq__(self, other: object) -> "PendingCondition":  # type: ignore[override]  # object says bool
        return _compared(self, "==", other)

    def __ne__(self, other: object) -> "PendingCondition":  # type: ignore[override]  # as above
        return _compared(self, "!=", other)

    __hash__ = object.__hash__


class PendingValue(_Compared):
    """A reference. ``root`` is the id of a step, or empty for an input of the plan; ``mark`` writes it into a text."""

    def __init__(self, root: str, path: str, annotation: Any, mark: "Callable[[PendingValue], str]") -> None:
        self._root, self._path, self._type, self._mark = root, path, annotation, mark

    def __getattr__(self, name: str) -> "PendingValue":
        if name.startswith("__"):
            raise AttributeError(name)
        fields = _fields_of(self._type)
        if name in RESULT_FIELDS and (get_origin(self._type) or self._type) in (list, str, int, float, bool):
            hint = "read it when the task has ended: `handle.details()` has the status and error of each step and item"
            raise refused(repr(self), f"it is a value, which has no {name!r}", hint)
        if fields is not None and name not in fields:
            raise refused(repr(self), f"it has no field {name!r}", Unknown(name, fields).text())
        return self._part(name, Any if fields is None else fields[name])

    def __getitem__(self, key: str | int) -> "PendingValue":
        origin, arguments = get_origin(self._type), get_args(self._type)
        inner = arguments[-1] if origin in (list, dict) and arguments else Any
        return self._part(key, inner)

    def _part(self, key: str | int, annotation: Any) -> "PendingValue":
        if isinstance(key, bool) or '"' in str(key):
            raise refused(
                repr(self), f"{key!r} names no part of it", "use the name of a field or the number of an item"
            )
        named = f".{key}" if _WORD.fullmatch(str(key)) else f'["{key}"]'
        step = f"[{key}]" if isinstance(key, int) else named
        return PendingValue(self._root, self._path + step, annotation, self._mark)

    def __str__(self) -> str:
        return self._mark(self)

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._unknown(f"the format {spec!r}")
        return self._mark(self)

    def __repr__(self) -> str:
        return "${" + self._path + "}"

    def _unknown(self, what: str) -> Exception:
        return refused(repr(self), f"the value is not known while the plan is built, and {what} needs it", _NOT_KNOWN)

    def __bool__(self) -> bool:
        raise self._unknown("a condition")

    def __iter__(self) -> NoReturn:
        hint = "write `step.map(result)` for one child per item"
        raise refused(repr(self), "the value is not known while the plan is built, and a loop needs it", hint)

    def __len__(self) -> int:
        raise self._unknown("`len`")

    def __lt__(self, other: object) -> "PendingCondition":
        return _compared(self, "<", other)

    def __le__(self, other: object) -> "PendingCondition":
        return _compared(self, "<=", other)

    def __gt__(self, other: object) -> "PendingCondition":
        return _compared(self, ">", other)

    def __ge__(self, other: object) -> "PendingCondition":
        return _compared(self, ">=", other)

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise self._unknown("a method")

    def _compute(self, _other: object) -> NoReturn:
        raise self._unknown("an operator")

    __contains__ = _compute
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = _compute


class PendingCondition(_Compared):
    """A condition over results: ``found.count > 0``, joined by ``&``, ``|`` and ``~``. ``text`` is its form."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __and__(self, other: object) -> "PendingCondition":
        return PendingCondition(f"({self.text} and {_operand(other)})")

    def __or__(self, other: object) -> "PendingCondition":
        return PendingCondition(f"({self.text} or {_operand(other)})")

    def __invert__(self) -> "PendingCondition":
        return PendingCondition(f"not ({self.text})")

    def __bool__(self) -> bool:
        hint = "give it to `.when(…)`; write `&`, `|` and `~` for `and`, `or` and `not`, and comparisons in parentheses"
        raise refused("a condition", "whether it holds is not known while the plan is built", hint)


def _compared(left: object, sign: str, right: object) -> PendingCondition:
    sides = (f"({one.text})" if isinstance(one, PendingCondition) else _operand(one) for one in (left, right))
    return PendingCondition(f" {sign} ".join(sides))


def _operand(value: object) -> str:
    if isinstance(value, PendingCondition):
        return value.text
    try:
        return str(value) if isinstance(value, PendingValue) else dump(to_jsonable_python(value))
    except ValueError as error:
        raise refused("a condition", f"a value is not JSON: {error}", "compare with a text or a number") from None


def condition_text(condition: object) -> str:
    """Return a condition as plans write it; a text is one already."""
    return condition if isinstance(condition, str) else _operand(condition)


def root_of(pending: PendingValue) -> str:
    """Return the id of the step that gives it; empty for an input of the plan."""
    return str(vars(pending)["_root"])


def _fields_of(annotation: Any) -> Mapping[str, Any] | None:
    """Return the types of the fields that a type has, if it names them all."""
    if dataclasses.is_dataclass(annotation) or is_typeddict(annotation):
        return dict(annotation.__annotations__)
    fields = getattr(annotation, "model_fields", None)
    return {name: one.annotation for name, one in fields.items()} if isinstance(fields, Mapping) else None
