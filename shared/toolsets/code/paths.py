"""The shared parts of the file tools: finding a place, the target of a call, permitted or not (FS-06, FS-07)."""

import os
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from threading import Event

from soong.shared.core.jsontext import JsonObject
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_file
from soong.shared.sandbox.paths import Located, PathPolicy, is_linked_elsewhere, stands_linked, valid_text
from soong.shared.sandbox.redact import holds_key
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Target, ToolContext
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.tools.schema import text_of


def read_target(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Target:
    """Return the target of a read. It asks where the place is sensitive, or lies in none of the read roots. A place
    that asks is bound to the object that was shown: its precondition names it and is checked when it is opened.
    """
    located = policy.locate(context.run_dirs, _asked_path(context, call_input))
    is_linked, is_key = stands_linked(located.resolved), stands_key(located.resolved)
    is_outside = not located.is_inside_read_roots
    is_asked = located.is_sensitive or is_linked or is_key or is_outside
    given, resolved = located.given.rstrip("/"), str(located.resolved)
    is_plain = resolved.endswith(f"/{given.removeprefix('./')}") or resolved == given or given in ("", ".")
    remarks = [] if is_plain else [valid_text(f"{located.given!r} leads to {resolved!r}")]
    remarks += ["a hard link: the same file has a name elsewhere"] if is_linked else []
    remarks += ["it holds a private key or a login"] if is_key else []
    return Target(
        kind="path",
        scope=str(located.resolved if located.resolved.is_dir() else located.resolved.parent) if is_asked else "",
        shown=resolved,
        is_inside_roots=not is_outside,
        is_sensitive=located.is_sensitive or is_linked or is_key,
        precondition=object_identity(located.resolved) if is_asked else "",
        preview="; ".join(remarks),
    )


def permitted(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Located:
    """Find a place again and hold it to what was permitted; without a pipeline nothing beyond the free is.
    Raises: ToolError, it asks for consent that this call does not have, or leads elsewhere than what was shown.
    """
    path = _asked_path(context, call_input)
    located = policy.locate(context.run_dirs, path)
    why = _why_asked(located)
    if not why:
        return located
    if not context.allowed_outside:
        raise ToolError(ErrorType.PERMISSION_DENIED, f"{str(located.resolved)!r} {why} and was not permitted")
    if context.target.shown != str(located.resolved):
        raise ToolError(ErrorType.PATH_CONFLICT, f"{path!r} leads elsewhere than when it was permitted; call again")
    return located


def check_object(context: ToolContext, path: Path, descriptor: int) -> None:
    """Hold an opened object to the one that was shown, and to what needed no showing.
    Raises: PathRefusedError, another object is there now, or it has got a name elsewhere.
    """
    status, problem = os.fstat(descriptor), ""
    if context.precondition and context.precondition != _identity(status):
        problem = "was replaced after it was permitted"
    elif not context.allowed_outside and is_linked_elsewhere(path, status):
        problem = "has got another name since it was checked"
    elif not context.allowed_outside and stat.S_ISREG(status.st_mode) and holds_key(descriptor):
        problem = "holds a key or a login since it was checked"
    if problem:
        raise PathRefusedError(PathRefusal.CHANGED, str(path), problem, "call again")


def in_thread(
    work: Callable[[ToolContext, JsonObject, Event], ToolResult], *, keep_result: bool = False
) -> Callable[[ToolContext, JsonObject], Awaitable[HandlerOutput]]:
    """Return the handler that does this work off the event loop (:func:`soong.shared.sandbox.threads.run_blocking`)."""

    async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return await run_blocking(partial(work, context, call_input), keep_result=keep_result)

    return handle


def stands_key(path: Path) -> bool:
    """Say whether a regular file is at a resolved path whose head holds a private key."""
    try:
        with opened_file(path) as descriptor:
            return holds_key(descriptor)
    except (PathRefusedError, OSError):
        return False  # nothing of it is shown; the call ends as what it is


def object_identity(path: Path) -> str:
    """Return device and inode of what is at a resolved path, or ``absent``."""
    try:
        return _identity(path.lstat())
    except OSError:
        return "absent"


def _asked_path(context: ToolContext, call_input: JsonObject) -> str:
    """Return the path that a call names; the project when it names none."""
    return text_of(call_input, "path", str(context.run_dirs.project))


def _why_asked(located: Located) -> str:
    """Say why a read needs consent; empty when it does not."""
    if located.is_sensitive:
        return "is sensitive"
    if stands_linked(located.resolved):
        return "is a hard link to a file that has another name"
    if stands_key(located.resolved):
        return "holds a private key or a login"
    return "" if located.is_inside_read_roots else "lies outside the project and the read roots"


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"
