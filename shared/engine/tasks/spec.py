"""What a plan says about one step, as the step's row keeps it and its worker reads it (DAG-02).

Owns the stored JSON form: :meth:`StepSpec.from_json` and :meth:`StepSpec.to_json` are called where a store reads and
writes rows, and nowhere else. What decides who runs a step and when has columns of its own (``NewStep``).
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind

VERSION: Final = 1


class DeclaredPermissions(Value):
    """The scopes that a step names. Each of ``run`` is a program and its arguments; nothing in it is expanded."""

    write: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    run: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.write or self.hosts or self.run)

    def as_json(self) -> dict[str, Json]:
        """Return the stored form; what is not declared is left out."""
        found: dict[str, Json] = {
            "write": list(self.write),
            "hosts": list(self.hosts),
            "run": [list(words) for words in self.run],
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, value: Json) -> "DeclaredPermissions":
        """Read the stored form; what is not of it is nothing."""
        if not isinstance(value, Mapping):
            return cls()
        return cls(_texts(value.get("write")), _texts(value.get("hosts")), tuple(map(_texts, _list(value.get("run")))))


class BoundStep(Value):
    """The input of a step's run: instructions and inputs with every reference looked up, once."""

    instructions: str
    inputs: JsonObject


class StepSpec(Value):
    """The work of one step. ``instructions``, ``inputs`` and ``permissions`` are templates until they are bound.

    ``call`` belongs to a python step, ``script`` to an agent step that runs without a model; ``over``, ``item_name``,
    ``item_key``, ``max_items``, ``on_item_failure``, ``step`` and ``child_surface`` belong to a map step. ``title``,
    ``priority`` and ``backoff_s`` are those of ``step`` alone, which has no row yet.
    """

    id: str = ""
    kind: StepKind = StepKind.AGENT
    title: str = ""
    instructions: str = ""
    inputs: JsonObject = msgspec.field(default_factory=dict)
    output: JsonObject | None = None
    """The schema of the step's output."""
    call: str = ""
    isolation: str | None = None
    """``thread`` or ``process``; None: as its function was registered."""
    script: str = ""
    settings: JsonObject = msgspec.field(default_factory=dict)
    """How its model is asked, where it says so itself."""
    allowed_tools: tuple[str, ...] | None = None
    permissions: DeclaredPermissions = DeclaredPermissions()
    timeout_s: float | None = None
    retries: int = 0
    priority: int = 0
    backoff_s: float = 1.0
    on_failure: FailurePolicy | None = None
    """None: the plan says nothing, and an agent that plans the task may decide (DAG-05)."""
    claim: ClaimMode = ClaimMode.ASSIGNED
    over: Json = None
    item_name: str = "item"
    item_key: str = ""
    max_items: int = 1000
    on_item_failure: FailurePolicy | None = None
    step: "StepSpec | None" = None
    """The step that is made for each item of a map step."""
    child_surface: JsonObject = msgspec.field(default_factory=dict)
    """The surface of the items' runs; stored, so that an expansion needs neither registry nor policy."""
    bound: BoundStep | None = None
    """Set for an item of a map step, whose templates were looked up when it was made."""
    max_steps: int | None = None
    """How many steps a pull worker may take in all; None: as many as there are."""
    is_limited: bool = False
    """Its task has limits: they are looked at before it starts, and its model turns are charged to them (DIS-07)."""

    def to_json(self) -> dict[str, Json]:
        """Return the stored form; defaults are left out."""
        stored: dict[str, Json] = {"v": VERSION, "id": self.id, "kind": self.kind.value}
        for value, (name, default) in zip(_VALUES(self), _DEFAULTS, strict=True):
            if value is not default and value != default:
                write = _WRITERS.get(name)
                stored[name] = value if write is None else write(value)
        return stored

    @classmethod
    def from_json(cls, stored: JsonObject) -> "StepSpec":
        """Read the stored form. A field without a value that it can have keeps its default; unknown ones are ignored.

        Raises: ValueError when a field that is a closed set holds another word.
        """
        readers = _READERS
        return cls(
            **{name: readers[name](value) for name, value in stored.items() if value is not None and name in readers}
        )


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(one for one in _list(value) if isinstance(one, str))


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list | tuple) else ()


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _bound(value: Json) -> BoundStep:
    found = _object(value)
    return BoundStep(str(found.get("instructions", "")), _object(found.get("inputs")))


def _bound_json(bound: BoundStep) -> Json:
    return {"instructions": bound.instructions, "inputs": bound.inputs}


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "id": str,
    "kind": StepKind,
    "title": str,
    "instructions": str,
    "inputs": _object,
    "output": _object,
    "call": str,
    "isolation": str,
    "script": str,
    "settings": _object,
    "allowed_tools": _texts,
    "permissions": DeclaredPermissions.from_json,
    "timeout_s": float,
    "retries": int,
    "priority": int,
    "backoff_s": float,
    "on_failure": FailurePolicy,
    "claim": ClaimMode,
    "over": lambda value: value,
    "item_name": str,
    "item_key": str,
    "max_items": int,
    "on_item_failure": FailurePolicy,
    "step": StepSpec.from_json,
    "child_surface": _object,
    "bound": _bound,
    "max_steps": int,
    "is_limited": bool,
}
"""How each field is read; the annotation ``Any`` is this table's alone."""

_WRITERS: Final[Mapping[str, Callable[[Any], Json]]] = {
    "allowed_tools": list,
    "permissions": DeclaredPermissions.as_json,
    "on_failure": str,
    "claim": str,
    "on_item_failure": str,
    "step": StepSpec.to_json,
    "bound": _bound_json,
}
"""How the fields are written that are not JSON themselves."""

_EMPTY: Final = StepSpec()
_DEFAULTS: Final = tuple(
    (one.name, getattr(_EMPTY, one.name)) for one in fields(StepSpec) if one.name not in ("id", "kind")
)
_VALUES: Final = attrgetter(*(name for name, _ in _DEFAULTS))
