"""A decision as text: its row, and the copy of it in the notification of the worker that waits for it."""

from typing import Any

from msgspec.structs import fields

from soong.shared.core.errors import ForgedError
from soong.shared.core.jsontext import dump, parse_strict
from soong.shared.permissions.request import Choice, Decision
from soong.shared.tools.result import ErrorType


def fields_of(decision: Decision) -> dict[str, object]:
    """Return what is stored of a decision."""
    return {field.name: getattr(decision, field.name) for field in fields(decision)}


def text_of(decision: Decision) -> str:
    """Return a decision as text."""
    return dump(fields_of(decision))


def decision_from(kept: Any) -> Decision:
    """Return the decision of stored fields.

    Raises:
        ForgedError: they are not those of a decision: an unknown word, a field too few or too many.
    """
    try:
        error = None if kept["error"] is None else ErrorType(kept["error"])
        return Decision(**{**kept, "choice": Choice(kept["choice"]), "error": error})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForgedError(f"a decision cannot be read: {error}", what="malformed_decision") from error


def notified_decision(text: str) -> Decision:
    """Return the decision of a notification, which anybody may have written.

    Raises:
        ForgedError: the text is not a decision.
    """
    try:
        kept = parse_strict(text)
    except (ValueError, RecursionError) as error:
        raise ForgedError(f"a decision cannot be read: {error}", what="malformed_decision") from error
    return decision_from(kept)
