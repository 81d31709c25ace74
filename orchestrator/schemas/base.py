"""The base of every published schema: strict, immutable, with instants as RFC 3339 text in UTC.

A schema is the one form of a thing for programs: the HTTP API sends it, ``--json`` prints it, the SDK returns it.
Texts come from models and strangers and are sent as they are stored: a page that shows them escapes them. Nothing here
has a run's token, a proof or a signature.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, ClassVar, Self, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value

AnyJson = Annotated[Any, WithJsonSchema({})]
"""A value as it is stored: a row may hold half a character, which no typed text does."""

AnyObject = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]
Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]

_Read: TypeAlias = Callable[[Any], Any]


class From(Value):
    """The source of a field: a path of attributes of the inner value, and the conversion to the field."""

    path: str
    read: _Read | None = None


class Schema(BaseModel):
    """A document that is sent."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def of(cls, *values: object, **given: Any) -> Self:
        """Build it from inner values: each field that is not given from the first of them that has its attribute.

        A field reads the attribute of its own name, or the one that its :class:`From` names; an :data:`Instant` reads
        the microseconds of that name.
        """
        for name, place, read in _readers(cls, tuple(map(type, values))):
            if name not in given:
                given[name] = read(values[place])
        return cls(**given)


@cache
def _readers(schema: type[Schema], kinds: tuple[type, ...]) -> list[tuple[str, int, _Read]]:
    """Return by field which value it is read from, and how; fields that no value has are left out."""
    found: list[tuple[str, int, _Read]] = []
    for name, hint in get_type_hints(schema, include_extras=True).items():
        if name in schema.model_fields:
            plain, source = _source_of(name, hint)
            first = source.path.partition(".")[0]
            place = next((place for place, kind in enumerate(kinds) if hasattr(kind, first)), None)
            if place is not None:
                found.append((name, place, _reader(attrgetter(source.path), source.read, _conversion(plain))))
    return found


def _source_of(name: str, hint: Any) -> tuple[Any, From]:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, From):
            others = [one for one in hint.__metadata__ if one is not extra]
            return Annotated[(hint.__origin__, *others)] if others else hint.__origin__, extra
    return hint, From(f"{name}_us" if _without_none(hint) == Instant else name)


def _reader(get: _Read, own: _Read | None, by_type: _Read | None) -> _Read:
    """Return what reads a field: as its :class:`From` has it, else by its type, where there is a value."""
    if own is not None:
        return lambda value: own(get(value))
    if by_type is None:
        return get
    return lambda value: None if (found := get(value)) is None else by_type(found)


def _conversion(hint: Any) -> _Read | None:
    """Return what makes a field of this type of an inner value that is not None; None: the value is the field."""
    kind = _without_none(hint)
    if kind == Instant:
        return rfc3339
    if kind is str:
        return lambda value: value.value if isinstance(value, Enum) else value
    if kind == AnyObject or get_origin(kind) is dict:
        return lambda value: dict(value) if isinstance(value, Mapping) else value.as_json()
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return (lambda values: [item.of(one) for one in values]) if _is_schema(item) else list
    return kind.of if _is_schema(kind) else None


def _without_none(hint: Any) -> Any:
    return next(one for one in get_args(hint) if one is not NoneType) if NoneType in get_args(hint) else hint


def _is_schema(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Schema)


def instant(us: int | None) -> str | None:
    """Return microseconds since 1970 as RFC 3339 text; None stays None."""
    return None if us is None else rfc3339(us)


def step_id_of(key: str) -> str:
    """Return the step's id from its key ``task/step``; empty for an empty key."""
    return key.partition("/")[2]
