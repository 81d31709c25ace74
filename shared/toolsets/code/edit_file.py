"""code.edit_file: change a text file by exact replacements or a unified diff, all or nothing (FS-05, FS-07, FS-09).

Bytes outside the edit stay as they are: encoding, byte order mark, line endings, a missing last newline. Text of a call
is UTF-8; in a file of another encoding it is found and put in as such, byte for byte. Binary content (a NUL, UTF-16) is
refused. An edit is computed twice from the same input: before the question, so that only a possible edit is asked for
and the effect is shown, and again on the current content, which must be the one that was shown. A sensitive file is the
exception: whether it contains a text is not revealed before it is permitted.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

import msgspec

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import Located, PathPolicy, is_below, is_linked_elsewhere, shown_path, valid_text
from soong.shared.tools.definition import Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, flag, flag_of, string, text_of
from soong.shared.toolsets.code.atomic_write import ABSENT, Replacement, State, WriteResult, read_state, write
from soong.shared.toolsets.code.diff_header import DiffError, Fault, FileNames
from soong.shared.toolsets.code.exact_edits import Edit, apply_edits, is_utf8, shared_prefix
from soong.shared.toolsets.code.paths import in_thread
from soong.shared.toolsets.code.unified_diff import UnifiedDiff, apply_diff, parse_diff
from soong.shared.toolsets.code.write_file import (
    WRITE_ERRORS,
    check_write_permitted,
    holds_key_now,
    locate_for_writing,
    preview_of,
)

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Size of the file before and after, and of the text of a call: every writable file can be edited."""
MAX_EDITS: Final = 200
_MAX_SHOWN_OFFSETS: Final = 20
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")

_EDIT: Final = arguments(
    *("old", "new"),
    old=string("Text that occurs in the file exactly once, copied exactly."),
    new=string("Text to put in its place; empty to delete."),
)


def edit_file_tool(policy: PathPolicy) -> ToolDefinition:
    return ToolDefinition(
        name="code.edit_file",
        title="Edit file",
        description=(
            "Change a text file by exact replacements (edits) or by a unified diff (unified_diff), one of the two. "
            "All of it is applied, or nothing."
        ),
        search_hint="replace patch modify change diff",
        input_schema=arguments(
            "path",
            path=string("File to edit; relative paths start at the working directory."),
            edits={
                "type": "array",
                "description": "Replacements, in order, each on the result of the one before.",
                "items": _EDIT,
                "minItems": 1,
                "maxItems": MAX_EDITS,
            },
            unified_diff=string("A unified diff of this one file, with its --- and +++ lines.", minLength=1),
            create_if_missing=flag("Create the file: by a first edit whose old is empty, or a diff.", default=False),
            replace_all=flag("Replace every occurrence of an edit's old text.", default=False),
        ),
        handler=in_thread(partial(_edit, policy), keep_result=True),
        permission=Permission.WRITE,
        tags=frozenset({"code", "filesystem", "write"}),
        errors=(
            ErrorType.TEXT_NOT_FOUND,
            ErrorType.AMBIGUOUS_EDIT,
            ErrorType.PATCH_APPLY_FAILED,
            ErrorType.BINARY_FILE,
            *WRITE_ERRORS,
        ),
        interrupt="block",
        target=partial(_target, policy),
    )


class _Place(Value):
    """The current file of a call. ``is_secret``: nothing of it is revealed before it is permitted."""

    located: Located
    state: State
    is_secret: bool

    @property
    def is_absent(self) -> bool:
        return self.state.precondition == ABSENT


class _EditOutcome(Value):
    """The content after the edit, and what a program gets about its origin."""

    content: bytes
    facts: Mapping[str, Json] = msgspec.field(default_factory=dict)


def _target(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Target:
    """Compute what a person is asked; a call that cannot succeed is refused here and never asked."""
    request = edit_request(call_input)
    place = _place(policy, context, call_input, request)
    located = place.located
    if place.is_secret:
        preview = f"edit {valid_text(str(located.resolved))}: {request.size}, tried only once it is permitted"
    else:
        preview = preview_of(located, place.state, _outcome(place, request).content)
    return Target(
        kind="path",
        scope=str(located.resolved.parent),
        shown=str(located.resolved),
        is_inside_roots=located.is_inside_write_roots,
        is_sensitive=place.is_secret or located.is_steering,
        precondition=place.state.precondition,
        preview=preview,
    )


def _edit(policy: PathPolicy, context: ToolContext, call_input: JsonObject, stop: Event) -> ToolResult:
    request = edit_request(call_input)
    place = _place(policy, context, call_input, request)
    path, precondition = place.located.resolved, place.state.precondition
    check_write_permitted(place.located, context)
    if place.is_secret and not context.allowed_outside:
        raise ToolError(ErrorType.PERMISSION_DENIED, f"{str(path)!r} is sensitive and was not permitted")
    if context.precondition not in ("", precondition):
        raise _changed(place)
    outcome = _outcome(place, request)
    # Bound to the very content that was edited: any change since then ends as path_conflict.
    written = write(Replacement(path, outcome.content, precondition, creates_folders=True, overwrites=True), stop)
    if written is None:
        raise _changed(place)
    return _result(context, place, request, outcome, written)


class EditRequest(Value):
    """Exactly one of ``edits`` and ``diff`` is there."""

    edits: tuple[Edit, ...]
    diff: UnifiedDiff | None
    creates_missing: bool
    replaces_all: bool

    @property
    def size(self) -> str:
        count, word = (len(self.edits), "edit") if self.diff is None else (len(self.diff.hunks), "hunk")
        return f"{count} {word}" + ("" if count == 1 else "s")


def _place(policy: PathPolicy, context: ToolContext, call_input: JsonObject, request: EditRequest) -> _Place:
    located = locate_for_writing(policy, context, text_of(call_input, "path"))
    if request.diff is not None:
        # A diff's names are those of the files that it was made of, and none of these lies beyond a link (as git).
        project, lexical = context.run_dirs.project, Path(os.path.normpath(context.run_dirs.cwd / located.given))
        if is_below(lexical, project) and lexical.parent != Path(os.path.realpath(lexical.parent)):
            hint = f"name {shown_path(located.resolved, context.run_dirs)!r}, in 'path' and in the diff"
            raise ToolError(ErrorType.INVALID_INPUT, f"{located.given!r} lies beyond a symbolic link", hint=hint)
        try:
            FileNames.of(located, context.run_dirs).check(request.diff.header)
        except DiffError as error:
            raise failure_of_diff(error) from error
    state = read_state(located.resolved, max_content=MAX_FILE_BYTES)
    is_linked = state.status is not None and is_linked_elsewhere(located.resolved, state.status)
    place = _Place(located, state, is_secret=located.is_sensitive or is_linked or holds_key_now(state))
    if place.is_absent and not request.creates_missing:
        hint = "pass create_if_missing=true to create it, or list the directory to find its name"
        raise PathRefusedError(PathRefusal.NOT_FOUND, str(located.resolved), "does not exist", hint)
    return place


def _outcome(place: _Place, request: EditRequest) -> _EditOutcome:
    """Work out the edit.
    Raises: ToolError, it does not fit the file, the file is not text, or one of the two is too large.
    """
    before = _text(place)
    diff = request.diff
    outcome = _replaced(place, request, before) if diff is None else _patched(place, diff, before)
    if len(outcome.content) > MAX_FILE_BYTES:
        problem = f"the edited file would have {len(outcome.content)} bytes; at most {MAX_FILE_BYTES} are written"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="split it into several files")
    line = outcome.content.count(b"\n", 0, shared_prefix(before, outcome.content)) + 1
    return _EditOutcome(outcome.content, {**outcome.facts, "first_changed_line": line})


def _text(place: _Place) -> bytes:
    if place.is_absent:
        return b""
    path, content = place.located.resolved, place.state.content
    size = place.state.status.st_size if place.state.status is not None else 0
    details: dict[str, Json] = {"path": valid_text(str(path)), "size": size}
    if content is None:
        problem = f"{str(path)!r} has {size} bytes; at most {MAX_FILE_BYTES} are edited"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="use a program made for large files", details=details)
    if b"\0" in content or content.startswith(_UTF16_MARKS):
        hint = "only text is edited; UTF-16 must be converted first"
        raise ToolError(ErrorType.BINARY_FILE, f"{str(path)!r} is a binary file", hint=hint, details=details)
    return content


def _patched(place: _Place, diff: UnifiedDiff, before: bytes) -> _EditOutcome:
    path = str(place.located.resolved)
    if place.is_absent and not diff.may_create:
        hint = "to create it, the old name must be /dev/null"
        raise PathRefusedError(PathRefusal.NOT_FOUND, path, "does not exist, and the diff changes lines of it", hint)
    try:
        if diff.creates and not place.is_absent:
            hint = "make a diff against the file as it is"
            raise DiffError(Fault.EXISTS, f"the diff creates {path!r}, which exists already", hint=hint)
        content, placements = apply_diff(before, diff)
    except DiffError as error:
        raise failure_of_diff(error) from error
    facts: dict[str, Json] = {"hunks": len(placements)}
    moved: list[Json] = [
        {"hunk": number, "line": each.line, "offset": each.offset}
        for number, each in enumerate(placements, 1)
        if each.offset
    ]
    return _EditOutcome(content, facts | ({"offsets": moved[:_MAX_SHOWN_OFFSETS]} if moved else {}))


def _replaced(place: _Place, request: EditRequest, before: bytes) -> _EditOutcome:
    edits, count = request.edits, 0
    if not edits[0].old:
        if not place.is_absent:
            hint = "an empty old text stands for a file that does not exist; quote the text to replace"
            raise ToolError(ErrorType.INVALID_INPUT, "old of edit 1 is empty and the file exists", hint=hint)
        before, edits, count = edits[0].new, edits[1:], 1
    elif place.is_absent:
        hint = "begin with an edit whose old is empty and whose new is the content"
        raise ToolError(ErrorType.TEXT_NOT_FOUND, "the file does not exist, so there is no text in it", hint=hint)
    edited = apply_edits(before, edits, replaces_all=request.replaces_all, max_bytes=MAX_FILE_BYTES)
    return _EditOutcome(edited.content, {"edits": len(request.edits), "replacements": edited.replacements + count})


def _changed(place: _Place) -> PathRefusedError:
    problem, hint = "changed after it was shown", "read it and call again"
    return PathRefusedError(PathRefusal.CHANGED, str(place.located.resolved), problem, hint)


def _result(
    context: ToolContext, place: _Place, request: EditRequest, outcome: _EditOutcome, written: WriteResult
) -> ToolResult:
    path = shown_path(place.located.resolved, context.run_dirs)
    file: dict[str, Json] = {"path": path, "size": written.size, "sha256": written.sha256, "created": written.is_new}
    metadata: dict[str, Json] = {"deliverable": {**file, "path": str(place.located.resolved)}}
    if not is_utf8(outcome.content):
        metadata["encoding"] = "the file is not all UTF-8; the new text was written as UTF-8"
    word, line = "created" if written.is_new else "edited", outcome.facts["first_changed_line"]
    text = f"{word} {path}: {request.size}, first changed line {line} ({written.size} bytes)"
    data = {**file, **outcome.facts}
    return ToolResult(context.tool_call_id, (TextBlock(text),), text, data, metadata=metadata)


def edit_request(call_input: JsonObject) -> EditRequest:
    """Read a validated input.
    Raises: ToolError, ``invalid_input``, ``limit_exceeded``, or ``patch_apply_failed`` for a damaged diff.
    """
    edits, diff = call_input.get("edits"), call_input.get("unified_diff")
    creates_missing = flag_of(call_input, "create_if_missing", default=False)
    replaces_all = flag_of(call_input, "replace_all", default=False)
    if isinstance(edits, list) and diff is None:
        return EditRequest(_edits(edits, creates_missing=creates_missing), None, creates_missing, replaces_all)
    if not isinstance(diff, str) or edits is not None:
        raise _invalid("give exactly one of edits and unified_diff")
    if replaces_all:
        raise _invalid("replace_all belongs to edits; a unified_diff says itself what it changes")
    return EditRequest((), _diff(diff), creates_missing, replaces_all)


def failure_of_diff(error: DiffError) -> ToolError:
    """Return the tool's error for a diff that is refused; ``details`` name the reason, the hunk and the diff's line."""
    details: dict[str, Json] = {"reason": error.fault.value}
    details |= {name: value for name, value in (("line", error.line), ("hunk", error.hunk)) if value}
    is_input = error.fault in {Fault.OTHER_FILE, Fault.SEVERAL_FILES}
    kind = ErrorType.INVALID_INPUT if is_input else ErrorType.PATCH_APPLY_FAILED
    if error.fault is Fault.EXISTS:
        kind = ErrorType.PATH_CONFLICT
    return ToolError(kind, str(error), hint=error.hint, details=details)


def _edits(items: list[Json], *, creates_missing: bool) -> tuple[Edit, ...]:
    given = (item for item in items if isinstance(item, dict))
    edits = tuple(Edit(*(_encoded(str(item.get(name, "")), name) for name in ("old", "new"))) for item in given)
    for number, edit in enumerate(edits, 1):
        if edit.old == edit.new:
            raise _invalid(f"old and new of edit {number} are the same")
        if not edit.old and not (creates_missing and number == 1):
            hint = "quote the text to replace; to insert, quote the line next to it and repeat it in new"
            raise _invalid(f"old of edit {number} is empty", hint)
        if b"\0" in edit.old + edit.new:
            raise _invalid(f"edit {number} holds a NUL character, which no text file does")
    _check_size(sum(len(edit.old) + len(edit.new) for edit in edits))
    return edits


def _diff(text: str) -> UnifiedDiff:
    diff = _encoded(text, "unified_diff")
    _check_size(len(diff))
    try:
        if b"\0" in diff:
            raise DiffError(Fault.NOT_AN_EDIT, "the diff holds a NUL character, which no text file does")
        return parse_diff(diff)
    except DiffError as error:
        raise failure_of_diff(error) from error


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _invalid(f"{name} is not valid Unicode: it holds a lone surrogate") from error


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        problem = f"the call has {size} bytes of text; at most {MAX_FILE_BYTES} are taken at once"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="make several calls")


def _invalid(problem: str, hint: str = "") -> ToolError:
    return ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)
