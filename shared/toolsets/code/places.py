"""What the file tools have in common: finding a place, saying what a call touches, permitted or not (FS-06, FS-07)."""

import os
from pathlib import Path

from shared.jsontext import Json, JsonObject
from shared.sandbox.descriptors import PathRefusal, PathRefusedError
from shared.sandbox.paths import Located, PathPolicy, valid_text
from shared.tools.definition import Target, ToolContext
from shared.tools.result import ErrorType, ToolError


def read_target(policy: PathPolicy, context: ToolContext, path: str, *, asks_outside: bool = False) -> Target:
    """Return the target of a read. Reading outside the project is free unless the place is sensitive.

    A sensitive place is bound to the object that was shown: its precondition names it and is checked when it is opened.
    """
    located = policy.locate(context.workplace, path)
    is_asked = located.is_sensitive or (asks_outside and not located.is_inside_project)
    return Target(
        kind="path",
        scope=str(_folder(located.resolved)) if is_asked else "",
        shown=str(located.resolved),
        is_inside_roots=located.is_inside_project or not asks_outside,
        is_sensitive=located.is_sensitive,
        precondition=object_identity(located.resolved) if is_asked else "",
        preview=_other_name(located),
    )


def permitted(policy: PathPolicy, context: ToolContext, path: str, *, asks_outside: bool = False) -> Located:
    """Find a place again and hold it to what was permitted; without a pipeline nothing beyond the free is.

    Raises:
        ToolError: it asks for consent that this call does not have, or leads elsewhere than what was shown.
    """
    located = policy.locate(context.workplace, path)
    is_asked = located.is_sensitive or (asks_outside and not located.is_inside_project)
    if not is_asked:
        return located
    if not context.allowed_outside:
        word = "is sensitive" if located.is_sensitive else "lies outside the project"
        raise ToolError(ErrorType.PERMISSION_DENIED, f"{str(located.resolved)!r} {word} and was not permitted")
    if context.target.shown != str(located.resolved):
        raise ToolError(ErrorType.PATH_CONFLICT, f"{path!r} leads elsewhere than when it was permitted; call again")
    return located


def check_identity(context: ToolContext, descriptor: int) -> None:
    """Hold an opened object to the one that was shown.

    Raises:
        PathRefusedError: another object stands there now.
    """
    if context.precondition and context.precondition != _identity(os.fstat(descriptor)):
        raise PathRefusedError(
            PathRefusal.CHANGED, context.target.shown, "was replaced after it was permitted", "call again"
        )


def object_identity(path: Path) -> str:
    """Return device and inode of what stands at a resolved path, or ``absent``."""
    try:
        return _identity(path.lstat())
    except OSError:
        return "absent"


def text_of(call_input: JsonObject, name: str, default: str = "") -> str:
    """Return a validated string field."""
    value = call_input.get(name, default)
    return value if isinstance(value, str) else default


def number_of(call_input: JsonObject, name: str, default: int) -> int:
    """Return a validated integer field; JSON Schema counts 1.0 among the integers."""
    value = call_input.get(name, default)
    return int(value) if isinstance(value, int | float) else default


def flag_of(call_input: JsonObject, name: str, *, default: bool) -> bool:
    """Return a validated boolean field."""
    value = call_input.get(name, default)
    return value if isinstance(value, bool) else default


def string(description: str, **limits: Json) -> dict[str, Json]:
    """Return the schema of a string field."""
    return {"type": "string", "description": description, **limits}


def integer(description: str, default: int, minimum: int, maximum: int | None = None) -> dict[str, Json]:
    """Return the schema of an integer field."""
    schema: dict[str, Json] = {"type": "integer", "description": description, "default": default, "minimum": minimum}
    return schema if maximum is None else {**schema, "maximum": maximum}


def flag(description: str, *, default: bool) -> dict[str, Json]:
    """Return the schema of a boolean field."""
    return {"type": "boolean", "description": description, "default": default}


def _folder(resolved: Path) -> Path:
    return resolved if resolved.is_dir() else resolved.parent


def _other_name(located: Located) -> str:
    """Say both names when a link leads elsewhere than its name promises."""
    given = located.given.rstrip("/")
    is_plain = str(located.resolved).endswith(f"/{given.removeprefix('./')}") or str(located.resolved) == given
    return "" if is_plain or given in ("", ".") else valid_text(f"{located.given!r} leads to {str(located.resolved)!r}")


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"
