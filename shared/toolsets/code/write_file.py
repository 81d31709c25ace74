"""code.write_file: a complete file at once, atomically, only where and over what was shown (FS-04, FS-07, FS-09)."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from threading import Event
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import Located, PathPolicy, shown_path
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.toolsets.code.atomic_write import ABSENT, Replacement, WriteResult, read_state, write
from soong.shared.toolsets.code.exact_edits import is_utf8
from soong.shared.toolsets.code.paths import flag, flag_of, string, text_of
from soong.shared.toolsets.code.preview import holds_key_now, preview_of

MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024


def write_file_tool(policy: PathPolicy, *, max_bytes: int = MAX_CONTENT_BYTES) -> ToolDefinition:
    """Return the definition."""

    async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return await run_blocking(lambda stop: _write(policy, context, call_input, max_bytes, stop), keep_result=True)

    def target(context: ToolContext, call_input: JsonObject) -> Target:
        return _target(policy, context, call_input, max_bytes)

    return ToolDefinition(
        name="code.write_file",
        title="Write file",
        description="Write a complete text file. An existing file is replaced only with overwrite=true.",
        search_hint="create save new file",
        input_schema={
            "type": "object",
            "properties": {
                "path": string("File to write; relative paths start at the working directory."),
                "content": string("The full content of the file."),
                "create_dirs": flag("Create missing directories.", default=True),
                "overwrite": flag("Replace an existing file.", default=False),
            },
            "required": ["path", "content"],
        },
        handler=handle,
        permission=Permission.WRITE,
        tags=frozenset({"code", "filesystem", "write"}),
        errors=(
            ErrorType.PATH_CONFLICT,
            ErrorType.PATH_PROTECTED,
            ErrorType.PATH_OUTSIDE_ROOTS,
            ErrorType.FILE_NOT_FOUND,
            ErrorType.NOT_REGULAR_FILE,
            ErrorType.LIMIT_EXCEEDED,
        ),
        interrupt="block",
        traits=_traits,
        target=target,
    )


def _traits(_call_input: JsonObject) -> Traits:
    return Traits()


def _target(policy: PathPolicy, context: ToolContext, call_input: JsonObject, max_bytes: int) -> Target:
    """Compute what a person is asked; a call that cannot succeed is refused here and never asked."""
    content = _content(call_input, max_bytes)
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


def _write(policy: PathPolicy, context: ToolContext, call_input: JsonObject, max_bytes: int, stop: Event) -> ToolResult:
    content = _content(call_input, max_bytes)
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


def _content(call_input: JsonObject, max_bytes: int) -> bytes:
    try:
        content = text_of(call_input, "content").encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(ErrorType.INVALID_INPUT, "content is not valid Unicode: it holds a lone surrogate") from error
    if len(content) > max_bytes:
        problem = f"content has {len(content)} bytes; at most {max_bytes} are written at once"
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
    """Find the place of a file to be written.

    Raises:
        PathRefusedError: it is protected, or can only be a directory.
    """
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

    Raises:
        PathRefusedError: it leads elsewhere now, or lies outside without consent.
    """
    if context.target.shown and context.target.shown != str(located.resolved):
        problem = "leads elsewhere than when it was permitted"
        raise PathRefusedError(PathRefusal.CHANGED, located.given, problem, "call again")
    if not located.is_inside_write_roots and not context.allowed_outside:
        problem = "lies outside the write roots and was not permitted"
        raise PathRefusedError(PathRefusal.OUTSIDE, str(located.resolved), problem, "write below the working directory")
