"""What every published schema has in common: strict, immutable, with instants as RFC 3339 text in UTC.

A schema is the one form of a thing for programs: the HTTP API sends it, ``--json`` prints it, the SDK returns it.
Texts come from models and strangers and are sent as they are stored: a page that shows them escapes them. Nothing here
has a run's token, a proof or a signature.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from soong.shared.core.clock import rfc3339

AnyJson = Annotated[Any, WithJsonSchema({})]
"""A value as it is stored: a row may hold half a character, which no typed text does."""

AnyObject = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]
Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class Schema(BaseModel):
    """A document that is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def instant(us: int | None) -> str | None:
    """Return microseconds since 1970 as RFC 3339 text; None stays None."""
    return None if us is None else rfc3339(us)


def step_id_of(key: str) -> str:
    """Return the step's id from its key ``task/step``; empty for an empty key."""
    return key.partition("/")[2]
