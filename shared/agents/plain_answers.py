"""The stored form of a model's answer that is plain: text and calls, without anything of a provider.

The model library writes any answer (``ModelMessagesTypeAdapter``), and takes longer for it than for all else that a
scripted run does in a turn. A plain answer is written here, in the same form; any other is left to the library.
"""

from datetime import UTC
from math import isfinite
from typing import Any, Final

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ToolCallPart

from soong.shared.core.jsontext import Json

_ANSWER: Final = {"parts", "usage", "model_name", "timestamp", "kind", "state"}
_CALL: Final = {"tool_name", "args", "tool_call_id", "part_kind"}
_TEXT: Final = {"content", "part_kind"}
_UNUSED: Final[dict[str, Any]] = {"details": {}}
_MAX_DEPTH: Final = 20


class NotPlainError(ValueError):
    """The answer has something that only the library knows how to write."""


def stored_form(answer: ModelResponse) -> dict[str, Json]:
    """Return the form of a plain answer. It shares nothing with the answer that could change.

    Raises: NotPlainError.
    """
    if type(answer) is not ModelResponse or _given(answer) != _ANSWER or vars(answer.usage) != _UNUSED:
        raise NotPlainError
    if answer.timestamp.tzinfo is not UTC:
        raise NotPlainError
    return {
        "parts": [_part(part) for part in answer.parts],
        "usage": {},
        "model_name": answer.model_name,
        "timestamp": answer.timestamp.isoformat().replace("+00:00", "Z"),
        "kind": answer.kind,
        "state": answer.state,
    }


def _part(part: ModelResponsePart) -> dict[str, Json]:
    if type(part) is ToolCallPart and _given(part) == _CALL:
        return {
            "tool_name": part.tool_name,
            "args": _copied(part.args, _MAX_DEPTH),
            "tool_call_id": part.tool_call_id,
            "part_kind": part.part_kind,
        }
    if type(part) is TextPart and _given(part) == _TEXT:
        return {"content": part.content, "part_kind": part.part_kind}
    raise NotPlainError


def _given(value: object) -> set[str]:
    """Return the names of the attributes that are not None."""
    return {name for name, given in vars(value).items() if given is not None}


def _copied(value: object, depth: int) -> Json:
    """Return a copy of what is JSON already."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value  # type: ignore[return-value]  # just checked
    if kind is dict and depth:
        pairs: dict[object, object] = value  # type: ignore[assignment]  # just checked
        if all(type(name) is str for name in pairs):
            return {str(name): _copied(item, depth - 1) for name, item in pairs.items()}
    elif kind is list and depth:
        return [_copied(item, depth - 1) for item in value]  # type: ignore[attr-defined]  # just checked
    elif kind is float and isfinite(value):  # type: ignore[arg-type]  # just checked
        return value  # type: ignore[return-value]  # just checked
    raise NotPlainError
