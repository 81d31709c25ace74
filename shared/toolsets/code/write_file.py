"""code.write_file: a complete file at once, atomically, only where and over what was shown (FS-04, FS-07, FS-09).

A person is shown a diff before a write where there is text to compare, otherwise sizes.
"""

import difflib
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from threading import Event
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import Located, PathPolicy, is_linked_elsewhere, shown_path, valid_text
from soong.shared.sandbox.redact import HEAD_BYTES, is_key
from soong.shared.tools.definition import Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, flag, flag_of, string, text_of
from soong.shared.toolsets.code.atomic_write import ABSENT, Replacement, State, WriteResult, read_state, write
from soong.shared.toolsets.code.exact_edits import is_utf8
from soong.shared.toolsets.code.paths import in_thread
from soong.shared.toolsets.code.unified_diff import lines_of

MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024

MAX_PREVIEW_CHARS: Final = 20_000
MAX_COMPARED_LINES: Final = 2_000
"""Lines between the first and the last that changed: comparing costs their square."""
_CONTEXT_LINES: Final = 3
_HUNK_PLACES: Final = re.compile(r"(?<=[-+])\d+")


WRITE_ERRORS: Final = (
    ErrorType.PATH_CONFLICT,
    ErrorType.PATH_PROTECTED,
    ErrorType.PATH_OUTSIDE_ROOTS,
    ErrorType.FILE_NOT_FOUND,
    ErrorType.NOT_REGULAR_FILE,
    ErrorType.LIMIT_EXCEEDED,
)


def write_file_tool(policy: PathPolicy) -> ToolDefinition:
    return ToolDefinition(
        name="code.write_file",
        title="Write file",
        description="Write a complete text file. An existing file is replaced only with overwrite=true.",
        search_hint="create save new file",
        input_schema=arguments(
            *("path", "content"),
            path=string("File to write; relative paths start at the working directory."),
            content=string("The full content of the file."),
            create_dirs=flag("Create missing directories.", default=True),
            overwrite=flag("Replace an existing file.", default=False),
        ),
        handler=in_thread(partial(_write, policy), keep_result=True),
        permission=Permission.WRITE,
        tags=frozenset({"code", "filesystem", "write"}),
        errors=WRITE_ERRORS,
        interrupt="block",
        target=partial(_target, policy),
    )


def _target(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Target:
    """Compute what a person is asked; a call that cannot succeed is refused here and never asked."""
    content = _content(call_input)
    located = locate_for_writing(policy, context, text_of(call_input, "path"))
    state = read_state(located.resolved)
    if state.precondition != ABSENT and not flag_of(call_input, "overwrite", default=False):
        raise _exists(located)
    return Target(
        kind="path",
        scope=str(located.resolved.parent),
        shown=str(located.resolved),
        is_inside_roots=located.is_inside_write_roots,
        is_sensitive=located.is_sensitive or located.is_steering or holds_key_now(state),
        precondition=state.precondition,
        preview=preview_of(located, state, content),
    )


def _write(policy: PathPolicy, context: ToolContext, call_input: JsonObject, stop: Event) -> ToolResult:
    content = _content(call_input)
    located = locate_for_writing(policy, context, text_of(call_input, "path"))
    check_write_permitted(located, context)
    replacement = Replacement(
        path=located.resolved,
        content=content,
        precondition=context.precondition,
        creates_folders=flag_of(call_input, "create_dirs", default=True),
        overwrites=flag_of(call_input, "overwrite", default=False),
    )
    before = read_state(located.resolved).content or b""
    written = write(replacement, stop)
    if written is None:
        raise _exists(located)
    return _result(context, located, written, _lost(before, content))


def _content(call_input: JsonObject) -> bytes:
    try:
        content = text_of(call_input, "content").encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(ErrorType.INVALID_INPUT, "content is not valid Unicode: it holds a lone surrogate") from error
    if len(content) > MAX_CONTENT_BYTES:
        problem = f"content has {len(content)} bytes; at most {MAX_CONTENT_BYTES} are written at once"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="split it into several files")
    return content


def _exists(located: Located) -> PathRefusedError:
    hint = "pass overwrite=true to replace it, or choose another path"
    return PathRefusedError(PathRefusal.CHANGED, str(located.resolved), "exists already", hint)


def _result(context: ToolContext, located: Located, written: WriteResult, lost: list[Json]) -> ToolResult:
    path = shown_path(located.resolved, context.run_dirs)
    data: dict[str, Json] = {"path": path, "size": written.size, "sha256": written.sha256, "created": written.is_new}
    deliverable: Mapping[str, Json] = {**data, "path": str(located.resolved)}
    word = "created" if written.is_new else "replaced"
    text = f"{word} {path} ({written.size} bytes)"
    shown = text
    if lost:
        data["lost"] = lost
        shown += f"; the old file had {' and '.join(map(str, lost))}, the content has not"
    return ToolResult(context.tool_call_id, (TextBlock(shown),), text, data, metadata={"deliverable": deliverable})


def _lost(before: bytes, after: bytes) -> list[Json]:
    """Name the properties of the old text that the new content lacks."""
    if before.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ["the encoding UTF-16"]
    lost: list[Json] = ["a byte order mark"] if before.startswith(BOM_UTF8) and not after.startswith(BOM_UTF8) else []
    if b"\r\n" in before and b"\n" in after and b"\r\n" not in after:
        lost.append("line ends \\r\\n")
    if b"\0" not in before and not is_utf8(before):
        lost.append("an encoding other than UTF-8")
    return lost


def locate_for_writing(policy: PathPolicy, context: ToolContext, path: str) -> Located:
    """Find the place of a file to be written. Raises: PathRefusedError, it is protected, or can only be a directory."""
    located = policy.locate(context.run_dirs, path)
    if located.is_protected:
        problem = "is a control of this service, a part of its program or a control of a repository; no tool writes it"
        hint = "ask a person to change it by hand; an environment that agents may change is one that Soong is not in"
        raise PathRefusedError(PathRefusal.PROTECTED, path, problem, hint)
    if path.endswith("/") or located.resolved.name in ("", ".", ".."):
        raise PathRefusedError(PathRefusal.INVALID, path, "names a directory, not a file")
    return located


def check_write_permitted(located: Located, context: ToolContext) -> None:
    """Hold a place to what was shown; without a pipeline only the write roots are open.
    Raises: PathRefusedError, it leads elsewhere now, or lies outside without consent.
    """
    if context.target.shown and context.target.shown != str(located.resolved):
        problem = "leads elsewhere than when it was permitted"
        raise PathRefusedError(PathRefusal.CHANGED, located.given, problem, "call again")
    if not located.is_inside_write_roots and not context.allowed_outside:
        problem = "lies outside the write roots and was not permitted"
        raise PathRefusedError(PathRefusal.OUTSIDE, str(located.resolved), problem, "write below the working directory")


def preview_of(located: Located, state: State, after: bytes) -> str:
    """Return a unified diff against the existing text, or one line about it. The old content of a sensitive file is not
    shown, nor of one that holds a private key or has another name elsewhere.
    """
    name = valid_text(str(located.resolved))
    if state.precondition == ABSENT:
        return f"new file {name}: {_size(after)}"
    before = state.content
    if before is None:
        return f"replace {name}, a large file, by {_size(after)}"
    is_linked = state.status is not None and is_linked_elsewhere(located.resolved, state.status)
    if located.is_sensitive or is_linked or holds_key_now(state):
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    diff = None if b"\0" in before + after else _diff(_lines(before), _lines(after), name)
    if diff is None:
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    if not diff:
        return f"replace {name} by the same {_size(after)}"
    if len(diff) <= MAX_PREVIEW_CHARS:
        return diff
    return f"{diff[:MAX_PREVIEW_CHARS]}\n[the diff continues; {_size(after)}]"


def holds_key_now(state: State) -> bool:
    return state.content is not None and is_key(state.content[:HEAD_BYTES])


def _lines(content: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in lines_of(content)]


def _diff(old: list[str], new: list[str], name: str) -> str | None:
    """Return a unified diff of the lines that changed; None when they are too many to compare."""
    head = _shared_lines(old, new)
    tail = _shared_lines(old[head:][::-1], new[head:][::-1])
    first, after = max(0, head - _CONTEXT_LINES), max(0, tail - _CONTEXT_LINES)
    old, new = old[first : len(old) - after], new[first : len(new) - after]
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        return None
    lines = difflib.unified_diff(old, new, name, name, n=_CONTEXT_LINES)
    # The line numbers of a hunk get what was left out above it.
    moved = (
        _HUNK_PLACES.sub(lambda n: str(int(n[0]) + first), each) if each.startswith("@@ ") else each for each in lines
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in moved)


def _shared_lines(old: list[str], new: list[str]) -> int:
    """Return how many lines are equal from the beginning on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _size(content: bytes) -> str:
    count = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    return f"{len(content)} byte{'' if len(content) == 1 else 's'}, {count} line{'' if count == 1 else 's'}"
