"""What a call of code.edit_file asks for, held to everything that needs no file (FS-05)."""

from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.diff_fault import DiffError, Fault
from soong.shared.toolsets.code.exact_edits import Edit
from soong.shared.toolsets.code.paths import flag_of
from soong.shared.toolsets.code.unified_diff import UnifiedDiff, parse_diff

_INPUT_FAULTS: Final = frozenset({Fault.OTHER_FILE, Fault.SEVERAL_FILES})


class EditRequest(Value):
    """Exactly one of ``edits`` and ``diff`` is there."""

    edits: tuple[Edit, ...]
    diff: UnifiedDiff | None
    creates_missing: bool
    replaces_all: bool

    @property
    def size(self) -> str:
        """Say how much is asked for."""
        count, word = (len(self.edits), "edit") if self.diff is None else (len(self.diff.hunks), "hunk")
        return f"{count} {word}" + ("" if count == 1 else "s")


def edit_request(call_input: JsonObject, max_bytes: int) -> EditRequest:
    """Read a validated input.

    Raises:
        ToolError: ``invalid_input``, ``limit_exceeded``, or ``patch_apply_failed`` for a damaged diff.
    """
    edits, diff = call_input.get("edits"), call_input.get("unified_diff")
    creates_missing = flag_of(call_input, "create_if_missing", default=False)
    replaces_all = flag_of(call_input, "replace_all", default=False)
    if isinstance(edits, list) and diff is None:
        return EditRequest(
            _edits(edits, max_bytes, creates_missing=creates_missing), None, creates_missing, replaces_all
        )
    if not isinstance(diff, str) or edits is not None:
        raise _invalid("give exactly one of edits and unified_diff")
    if replaces_all:
        raise _invalid("replace_all belongs to edits; a unified_diff says itself what it changes")
    return EditRequest((), _diff(diff, max_bytes), creates_missing, replaces_all)


def failure_of_diff(error: DiffError) -> ToolError:
    """Return the tool's error for a diff that is refused; ``details`` name the reason, the hunk and the diff's line."""
    details: dict[str, Json] = {"reason": error.fault.value}
    details |= {name: value for name, value in (("line", error.line), ("hunk", error.hunk)) if value}
    kind = ErrorType.INVALID_INPUT if error.fault in _INPUT_FAULTS else ErrorType.PATCH_APPLY_FAILED
    if error.fault is Fault.EXISTS:
        kind = ErrorType.PATH_CONFLICT
    return ToolError(kind, str(error), hint=error.hint, details=details)


def _edits(items: list[Json], max_bytes: int, *, creates_missing: bool) -> tuple[Edit, ...]:
    edits = tuple(Edit(_bytes_of(item, "old"), _bytes_of(item, "new")) for item in items if isinstance(item, dict))
    for number, edit in enumerate(edits, 1):
        if edit.old == edit.new:
            raise _invalid(f"old and new of edit {number} are the same")
        if not edit.old and not (creates_missing and number == 1):
            hint = "quote the text to replace; to insert, quote the line next to it and repeat it in new"
            raise _invalid(f"old of edit {number} is empty", hint)
        if b"\0" in edit.old + edit.new:
            raise _invalid(f"edit {number} holds a NUL character, which no text file does")
    _check_size(sum(len(edit.old) + len(edit.new) for edit in edits), max_bytes)
    return edits


def _bytes_of(item: JsonObject, name: str) -> bytes:
    return _encoded(str(item.get(name, "")), name)


def _diff(text: str, max_bytes: int) -> UnifiedDiff:
    diff = _encoded(text, "unified_diff")
    _check_size(len(diff), max_bytes)
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


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        problem = f"the call has {size} bytes of text; at most {max_bytes} are taken at once"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="make several calls")


def _invalid(problem: str, hint: str = "") -> ToolError:
    return ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)
