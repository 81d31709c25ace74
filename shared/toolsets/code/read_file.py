"""code.read_file: a page of a text file by line, in constant memory whatever the file (FS-01)."""

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from threading import Event
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.descriptors import opened_file
from soong.shared.sandbox.names import readable
from soong.shared.sandbox.paths import Located, PathPolicy, shown_path
from soong.shared.sandbox.redact import MARK, KeyBlocks
from soong.shared.sandbox.threads import check
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ContextNode, ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, integer, number_of, string, text_of
from soong.shared.toolsets.code.paths import check_object, in_thread, permitted, read_target

DEFAULT_LINES: Final = 200
MAX_LINES: Final = 1000
MAX_LINE_BYTES: Final = 4096
MAX_PAGE_CHARS: Final = 12_000
MAX_START_LINE: Final = 2**53 - 1

_CHUNK_BYTES: Final = 256 * 1024
_SNIFFED_BYTES: Final = 8192
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")

INSTRUCTION_FILES: Final = ("AGENTS.md", "CLAUDE.md")
MAX_INSTRUCTION_BYTES: Final = 32 * 1024
_DIGEST_CHARS: Final = 12


def read_file_tool(
    policy: PathPolicy, *, max_page_chars: int = MAX_PAGE_CHARS, instruction_files: Sequence[str] = INSTRUCTION_FILES
) -> ToolDefinition:
    """Return the definition. A page over ``max_page_chars`` ends early; it is never an artifact. ``instruction_files``
    are names of files that also speak to the run when they are read (FS-08).
    """

    def traits(call_input: JsonObject) -> Traits:
        # A call that adds context runs alone, so that the order of a turn's calls is the order of its nodes.
        return Traits(is_read_only=True, is_concurrency_safe=not _names_any(call_input, instruction_files))

    return ToolDefinition(
        name="code.read_file",
        title="Read file",
        description="Read lines of a text file. Returns numbered lines; shows how to continue when there are more.",
        search_hint="view show cat open source text lines",
        input_schema=arguments(
            "path",
            path=string("File to read; relative paths start at the working directory."),
            start_line=integer("First line, counted from 1.", 1, 1, MAX_START_LINE),
            max_lines=integer("How many lines at most.", DEFAULT_LINES, 1, MAX_LINES),
        ),
        handler=in_thread(partial(_read, policy, max_page_chars, frozenset(instruction_files))),
        permission=Permission.READONLY,
        tags=frozenset({"code", "filesystem", "readonly"}),
        errors=(ErrorType.FILE_NOT_FOUND, ErrorType.NOT_REGULAR_FILE, ErrorType.BINARY_FILE, ErrorType.PATH_CONFLICT),
        keeps_full_output=True,
        max_result_chars=max_page_chars,
        traits=traits,
        target=partial(read_target, policy),
    )


@dataclass(slots=True)
class _FilePage:
    """Lines collected so far. ``chars`` counts what the model will be shown."""

    start: int
    max_lines: int
    max_chars: int
    lines: list[str] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    chars: int = 0
    is_full: bool = False
    is_binary: bool = False
    has_bad_bytes: bool = False
    ends_open: bool = False
    """The last line is the file's last and has no newline."""
    keys: KeyBlocks = field(default_factory=KeyBlocks)
    """Fed with what is before the page: a key that began there has no beginning in the page to be known by."""
    is_in_key: bool = False

    def add(self, raw: bytes, *, is_cut: bool) -> None:
        """Take the next line, or become full when it does not fit any more."""
        number = self.start + len(self.lines)
        self.is_in_key = self.is_in_key if self.lines else self.keys.is_open
        if self.is_in_key:
            self.keys.feed(raw + b"\n")
            raw, is_cut = MARK.encode(), False
        text, is_cut = _decoded(raw, is_cut=is_cut)
        size = len(_numbered(number, text))
        if self.lines and self.chars + size > self.max_chars:
            self.is_full = True
            return
        self.lines.append(text)
        self.chars += size
        self.is_in_key = self.is_in_key and self.keys.is_open
        self.has_bad_bytes = self.has_bad_bytes or "\ufffd" in text
        if is_cut:
            self.cut.append(number)

    def has_room(self) -> bool:
        return not self.is_full and not self.is_binary

    def sees_more(self) -> bool:
        """Take the start or the rest of a line; say whether it is wanted. Its length need not be known for that."""
        self.is_full = self.is_full or len(self.lines) >= self.max_lines
        return not self.is_full

    @property
    def end(self) -> int:
        return self.start + len(self.lines) - 1

    @property
    def text(self) -> str:
        """The lines as they are in the file: pages put together are the file, but for lines that were cut."""
        return "\n".join(self.lines) + ("" if self.ends_open or not self.lines else "\n")


def _read(
    policy: PathPolicy,
    max_chars: int,
    instruction_files: Collection[str],
    context: ToolContext,
    call_input: JsonObject,
    stop: Event,
) -> ToolResult:
    located = permitted(policy, context, call_input)
    start, max_lines = number_of(call_input, "start_line", 1), number_of(call_input, "max_lines", DEFAULT_LINES)
    page = _FilePage(start, max_lines, max_chars)
    shown = shown_path(located.resolved, context.run_dirs)
    # An instruction file speaks when it is read by its name: under another, the call may run in parallel.
    is_named = _names_any(call_input, instruction_files) and located.resolved.name in instruction_files
    with opened_file(located.resolved) as descriptor:
        check_object(context, located.resolved, descriptor)
        head = os.pread(descriptor, _SNIFFED_BYTES, 0)
        page.is_binary = b"\0" in head or head.startswith(_UTF16_MARKS)
        total = None if page.is_binary else _fill(page, descriptor, stop)
        if page.is_binary:
            size, hint = os.fstat(descriptor).st_size, "only text is read; UTF-16 must be converted first"
            details: dict[str, Json] = {"path": shown, "size": size}
            problem = f"{shown!r} is a binary file of {size} bytes"
            raise ToolError(ErrorType.BINARY_FILE, problem, hint=hint, details=details)
        is_speaking = is_named and not context.target.is_sensitive
        nodes = instructions(located, shown, descriptor) if is_speaking else ()
    return _result(context, page, shown, total, nodes)


def _names_any(call_input: JsonObject, names: Collection[str]) -> bool:
    return PurePosixPath(text_of(call_input, "path")).name in names


def _fill(page: _FilePage, descriptor: int, stop: Event) -> int | None:
    """Read until the page is full or the file ends; return the number of lines when the end was seen. A NUL anywhere up
    to the end of the page makes the file binary: the holes of a sparse file end the reading at once.
    """
    number = 1
    line = bytearray()
    length = 0
    while page.has_room():
        check(stop)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            if length:
                _take(page, number, line, length)
                page.ends_open = number >= page.start and page.has_room()
                number += 1
            return number - 1 if page.has_room() else None
        at = 0
        if number < page.start:
            at, number = _skipped(chunk, number, page.start)
            page.keys.feed(chunk[:at])
            length = 0 if at < len(chunk) or chunk.endswith(b"\n") else len(chunk)
        while at < len(chunk) and page.sees_more():
            newline = chunk.find(b"\n", at)
            end = len(chunk) if newline < 0 else newline + 1
            # Only the shown part of a long line is kept, plus one byte that marks it as longer.
            line += chunk[at : min(end, at + max(0, MAX_LINE_BYTES + 1 - len(line)))]
            length += end - at
            at = end
            if newline >= 0:
                _take(page, number, line, length)
                number, length = number + 1, 0
                line.clear()
        page.is_binary = chunk.find(b"\0", 0, at) >= 0
    return None


def _skipped(chunk: bytes, number: int, start: int) -> tuple[int, int]:
    """Return where in the chunk line ``start`` begins, or its end, and the number of the line that begins there."""
    count = chunk.count(b"\n")
    if number + count < start:
        return len(chunk), number + count
    at = 0
    while number < start:
        at = chunk.index(b"\n", at) + 1
        number += 1
    return at, number


def _take(page: _FilePage, number: int, line: bytearray, length: int) -> None:
    if number >= page.start:
        content = bytes(line[:-1] if line.endswith(b"\n") else line)
        is_cut = length - (1 if line.endswith(b"\n") else 0) > MAX_LINE_BYTES
        page.add(content[:MAX_LINE_BYTES], is_cut=is_cut)


def _decoded(raw: bytes, *, is_cut: bool) -> tuple[str, bool]:
    """Return a line as text of at most the limit's bytes, and whether anything of it is missing."""
    # A character cut in two at the limit is dropped whole; other bad bytes are shown as such, which takes more room.
    whole = raw[: len(raw) - _open_bytes(raw)] if is_cut else raw
    text = whole.decode("utf-8", "replace")
    encoded = text.encode("utf-8")
    if len(encoded) <= MAX_LINE_BYTES:
        return text, is_cut
    return encoded[:MAX_LINE_BYTES].decode("utf-8", "ignore"), True


def _open_bytes(raw: bytes) -> int:
    """Return how many bytes at the end begin a character that is not complete."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte & 0xC0 != 0x80:
            needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
            return back if back < needed else 0
    return 0


def _numbered(number: int, text: str) -> str:
    return f"{number:>6}\t{text}\n"


def _result(
    context: ToolContext, page: _FilePage, shown: str, total: int | None, nodes: tuple[ContextNode, ...]
) -> ToolResult:
    is_truncated = page.is_full
    following = page.end + 1 if is_truncated else None
    data: dict[str, Json] = {
        "path": shown,
        "start_line": page.start,
        "end_line": page.end,
        "text": page.text,
        "truncated": is_truncated,
        "next_start_line": following,
        "truncated_lines": list(page.cut),
    }
    if total is not None:
        data["total_lines"] = total
    text = "".join(_numbered(page.start + index, line) for index, line in enumerate(page.lines))
    notes = _notes(page, following, total)
    metadata: dict[str, Json] = {"truncated": is_truncated}
    if page.has_bad_bytes:
        metadata["decoding"] = "bytes that are not UTF-8 are shown as U+FFFD"
    lines = f"lines {page.start}-{page.end}" if page.lines else f"no lines from {page.start} on"
    content, summary = (TextBlock(text + notes),), f"{readable(shown)}: {lines}"
    return ToolResult(context.tool_call_id, content, summary, data, metadata=metadata, context_nodes=nodes)


def _notes(page: _FilePage, following: int | None, total: int | None) -> str:
    notes = []
    if not page.lines:
        notes.append(f"no line {page.start}; the file has {total} lines" if total else "the file is empty")
    if page.ends_open:
        notes.append("no newline at the end of the file")
    if page.cut:
        notes.append(f"cut at {MAX_LINE_BYTES} bytes: lines {', '.join(map(str, page.cut))}")
    if following is not None:
        notes.append(f"more lines follow; continue with start_line={following}")
    return "".join(f"[{note}]\n" for note in notes)


def instructions(located: Located, shown: str, descriptor: int) -> tuple[ContextNode, ...]:
    """Return the block for an opened instruction file; none outside the project or for an empty file.

    The full file is used, whatever page of it was asked for, up to a bound. The name holds file and content: the same
    content read again gives the same node, and a run needs it once.
    """
    content = os.pread(descriptor, MAX_INSTRUCTION_BYTES + 1, 0)
    if not located.is_inside_project or not content.strip() or b"\0" in content:
        return ()
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]
    text = content[:MAX_INSTRUCTION_BYTES].decode("utf-8", "ignore")
    end = "" if len(content) <= MAX_INSTRUCTION_BYTES else f"\n[cut at {MAX_INSTRUCTION_BYTES} bytes]"
    head = f"Instructions of this project for the files next to and below {readable(shown)}:\n\n"
    return (ContextNode("system", f"{shown}@{digest}", f"{head}{text}{end}"),)
