"""What rows leave out of events, nodes and calls: the values that most of their kind have.

An object whose fields are the usual ones is stored without them, under the number of its form. Readers add them in
the order of the form, so that they return what was written. A form never changes: what should be left out tomorrow is
a form with another number, and rows of each number stay readable.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from soong.shared.core.jsontext import Json
from soong.shared.storage.sql.engine.known_texts import INSTRUCTIONS

MARK: Final = ""
"""The field that says which form an object has. No event, node or call has one of this name."""
FIRST: Final = 1


class KnownTexts(tuple[str, ...]):
    """In a form: texts of which a row holds the number. An object with another text is stored as it is."""

    __slots__ = ()


_HERE: Final = ...
"""In a form: the place of a field that has no usual value."""

_FACTS: Final = {
    "permission": "readonly",
    "traits": {
        "is_read_only": True,
        "is_concurrency_safe": True,
        "is_destructive": False,
        "is_open_world": False,
    },
    "risk": "read",
    "target": "path",
    "scope": "",
    "shown": _HERE,
    "host": "",
    "is_inside_roots": True,
    "is_sensitive": False,
    "hook_result": "none",
}
_BY_RULE: Final = {"author": "rule", "rule": "default (runtime)"}
_SAME: Final = {"same": True}

EVENTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "model_responded": {
            "turn": _HERE,
            "duration_ms": _HERE,
            "calls": _HERE,
            "finish_reason": None,
            "response_id": None,
            "model": _HERE,
            "input_tokens": _HERE,
            "cached_tokens": 0,
            "output_tokens": _HERE,
            "cost_usd": "0",
        },
        "permission_decided": {
            "tool_call_id": _HERE,
            "tool": _HERE,
            "choice": "allow",
            "author": "rule",
            "rule": "default",
            "source": "runtime",
            "reason": "it only reads",
            "error": None,
            "facts": _FACTS,
        },
        "tool_started": {
            "tool_call_id": _HERE,
            "tool": _HERE,
            "input": _HERE,
            "effect_id": _HERE,
            **_BY_RULE,
            "decision_id": "",
        },
        "tool_completed": {
            "tool_call_id": _HERE,
            "tool": _HERE,
            "status": "completed",
            "duration_ms": _HERE,
            "content_chars": _HERE,
            "artifacts": [],
        },
    }
)
"""By the type of the event."""

NODES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "tool_result": {
            "v": _HERE,
            "tool_call_id": _HERE,
            "tool": _HERE,
            "is_error": False,
            "content": _HERE,
            "summary": _HERE,
            "data": _HERE,
            "artifacts": [],
            "error": None,
            "metadata": {},
        },
        "system": {"v": _HERE, "text": KnownTexts(INSTRUCTIONS)},
        "assistant": {
            "v": _HERE,
            "message": {
                "parts": _HERE,
                "usage": _HERE,
                "model_name": _HERE,
                "timestamp": _HERE,
                "kind": "response",
                "state": "complete",
            },
        },
        "result": {
            "v": _HERE,
            "end_reason": "completed",
            "output": _HERE,
            "outcome": "clean",
            "denials": [],
            "unknown_effects": [],
        },
    }
)
"""By the kind of the node: its payload."""

INPUTS: Final[Mapping[str, Any]] = MappingProxyType(
    {"model_input": _HERE, "hook_input": _SAME, "permission_input": _SAME, "call_input": _SAME}
)
CALL_FACTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "facts": _FACTS,
        "decision": {
            "is_allowed": True,
            **_BY_RULE,
            "reason": "it only reads",
            "decision_id": "",
            "error": None,
        },
    }
)
"""Of a call's row: its inputs, its facts."""


def shortened(value: Mapping[str, Json], form: Mapping[str, Any] | None) -> Mapping[str, Json]:
    """Return an object as its row holds it: as it is, unless it has each field of the form."""
    if form is None or MARK in value:
        return value
    left: dict[str, Json] = {MARK: FIRST, **value}
    return left if _leave_out(left, _fields_of(form)) else value


def entire(value: Mapping[str, Json], form: Mapping[str, Any] | None) -> Mapping[str, Json]:
    """Return an object of a row as it was written."""
    if MARK not in value or form is None:
        return value
    number = value[MARK]
    if number != FIRST or isinstance(number, bool):
        return value
    return _with(value, form)


class _Field(NamedTuple):
    """A field that a form leaves out, in one of three ways."""

    name: str
    usual: Any
    numbers: Mapping[str, int] | None = None
    """Of known texts."""
    parts: "tuple[_Field, ...] | None" = None
    """Of an object that leaves out some of its own."""


_READ_FORMS: Final[dict[int, tuple[Mapping[str, Any], tuple[_Field, ...]]]] = {}
"""By the identity of the form, which its entry holds: each is taken apart once, and used for every write."""


def _fields_of(form: Mapping[str, Any]) -> tuple[_Field, ...]:
    known = _READ_FORMS.get(id(form))
    if known is None:
        known = _READ_FORMS[id(form)] = (
            form,
            tuple(_field_of(name, usual) for name, usual in form.items() if usual is not _HERE),
        )
    return known[1]


def _field_of(name: str, usual: Any) -> _Field:
    if isinstance(usual, KnownTexts):
        return _Field(name, usual, numbers={text: number for number, text in enumerate(usual)})
    if isinstance(usual, dict) and usual:
        return _Field(name, usual, parts=_fields_of(usual))
    return _Field(name, usual)


_MISSING: Final[Any] = object()


def _leave_out(left: dict[str, Json], fields: tuple[_Field, ...]) -> bool:
    """Take the usual values out of an object; False, with some of them out, when it has not all fields of the form."""
    for name, usual, numbers, parts in fields:
        given = left.get(name, _MISSING)
        if parts is not None:
            if not isinstance(given, dict) or not _leave_out(inner := dict(given), parts):
                return False
            if inner:
                left[name] = inner
            else:
                del left[name]
        elif given is usual or _is_usual(given, usual):  # the same object, most often
            del left[name]
        elif given is _MISSING:
            return False
        elif numbers is not None:
            number = numbers.get(given) if isinstance(given, str) else None
            if number is None:
                return False
            left[name] = number
    return True


def _is_usual(given: Json, usual: Any) -> bool:
    """Say whether a value is this one as JSON has it: 0 is neither false nor 0.0."""
    if isinstance(usual, str):
        return isinstance(given, str) and given == usual
    if isinstance(usual, bool) or usual is None:
        return given is usual
    return type(given) is type(usual) and given == usual


def _with(value: Mapping[str, Json], form: Mapping[str, Any]) -> dict[str, Json]:
    whole: dict[str, Json] = {}
    for name, usual in form.items():
        if usual is _HERE:
            if name in value:
                whole[name] = value[name]
        elif isinstance(usual, KnownTexts):
            if name in value:
                whole[name] = _known(value[name], usual)
        elif isinstance(usual, dict) and usual:
            inner = value.get(name, {})
            whole[name] = _with(inner, usual) if isinstance(inner, dict) else inner
        else:
            whole[name] = value[name] if name in value else _copy(usual)
    whole.update((name, one) for name, one in value.items() if name not in whole and name != MARK)
    return whole


def _known(stored: Json, texts: KnownTexts) -> Json:
    """Return a text of which a row holds the number. A number without a text stays one."""
    if isinstance(stored, int) and not isinstance(stored, bool) and 0 <= stored < len(texts):
        return texts[stored]
    return stored


def _copy(usual: Any) -> Any:
    """Return a usual value that its reader may change."""
    return usual.copy() if isinstance(usual, list | dict) else usual
