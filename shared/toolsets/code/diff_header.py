"""The header of a unified diff: which file it is about, and that it only edits or creates it (FS-05).

Reads the two forms that ``git apply`` reads: ``diff --git`` with its extended lines, and a bare ``---``/``+++`` pair.
Text before the header, such as a commit message, is passed over. Names are only collected here; the file that is
written is always the tool's own ``path``, and :mod:`soong.shared.toolsets.code.diff_names` holds the two together.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from soong.shared.core.value import Value
from soong.shared.toolsets.code.diff_fault import DiffError, Fault

HUNK_LINE: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
HUNK_MARK: Final = b"@@ -"
GIT_MARK: Final = b"diff --git "
_OLD, _NEW = b"--- ", b"+++ "
_NO_FILE: Final = re.compile(rb"/dev/null\s")
_MODE: Final = re.compile(rb"([0-7]{1,7})\s")
_INDEX: Final = re.compile(rb"[^.\n]{0,64}\.\.[^ \n]{0,64} (.*)", re.DOTALL)
_PLAIN_FILE: Final = "100644"
_EPOCH: Final = re.compile(rb"\t(1969-12-31|1970-01-01) (\d\d:\d\d:00)(?:\.0+)? ([-+]\d\d):?(\d\d)\n$")
_OPERATIONS: Final = {
    b"old mode ": "changes the file's mode",
    b"new mode ": "changes the file's mode",
    b"deleted file mode ": "deletes the file",
    b"copy from ": "copies a file",
    b"copy to ": "copies a file",
    b"rename from ": "renames a file",
    b"rename to ": "renames a file",
    b"rename old ": "renames a file",
    b"rename new ": "renames a file",
}
_SILENT: Final = (b"similarity index ", b"dissimilarity index ")


class Name(Value):
    """A file name of the header as written, with its line; still quoted and with its prefix."""

    text: bytes
    line: int


class Header(Value):
    """``names`` are the ``---`` and ``+++`` names that are files; ``pair`` is the rest of a ``diff --git`` line.

    ``creates`` is "maybe" where only the hunks and the file can tell. ``end`` is the index of the first line after it.
    """

    names: tuple[Name, ...]
    pair: Name | None
    creates: Literal["yes", "no", "maybe"]
    end: int


def find_header(lines: list[bytes]) -> Header:
    """Return the first header of a diff.

    Raises:
        DiffError: there is none, it is damaged, or it does something else than to edit or create one regular file.
    """
    pair = None
    for at, line in enumerate(lines):
        if is_hunk_line(line):
            raise _broken("a hunk comes before any file header", at)
        header, above = None, pair
        if line.startswith(GIT_MARK):
            pair = Name(line[len(GIT_MARK) :].rstrip(b"\n"), at + 1)
            header = _git_header(lines, at, pair)
        elif is_pair(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith(HUNK_MARK):
            header = _bare_header(lines, at, pair)
        if header is not None and header.creates == "yes" and above is not None:
            raise _broken("there is other text between 'diff --git' and 'new file mode'", at)
        if header is not None:
            return header
    raise _broken("it holds no file header", len(lines) - 1)


def is_hunk_line(line: bytes) -> bool:
    """Say whether a line could begin a hunk."""
    return line.endswith(b"\n") and HUNK_LINE.match(line) is not None


def is_pair(lines: list[bytes], at: int) -> bool:
    """Say whether a ``---`` line is here with its ``+++`` line below."""
    return lines[at].startswith(_OLD) and at + 1 < len(lines) and lines[at + 1].startswith(_NEW)


def _bare_header(lines: list[bytes], at: int, pair: Name | None) -> Header:
    """Read a ``---``/``+++`` header. ``pair`` is that of a ``diff --git`` line above, cut off from it by other text."""
    old, new = lines[at][len(_OLD) :], lines[at + 1][len(_NEW) :]
    old_name, new_name = Name(old, at + 1), Name(new, at + 2)
    if _NO_FILE.match(old):
        if _NO_FILE.match(new):
            raise _broken("both of its names are /dev/null", at)
        return Header((new_name,), None, "yes", at + 2)
    if _NO_FILE.match(new) or _is_epoch(new):
        raise _no_edit("deletes the file", at + 1)
    creates: Literal["yes", "no", "maybe"] = "yes" if _is_epoch(old) else "maybe" if pair is None else "no"
    return Header((old_name, new_name), pair, creates, at + 2)


@dataclass(slots=True)
class _GitLines:
    """What the extended lines below ``diff --git`` have said so far."""

    old: list[Name] = field(default_factory=list)
    new: list[Name] = field(default_factory=list)
    creates: bool = False

    def take(self, line: bytes, at: int) -> bool:
        """Take a line; False when it is none of the header."""
        if line.startswith(_OLD):
            self.old.append(Name(line[len(_OLD) :], at + 1))
        elif line.startswith(_NEW):
            self.new.append(Name(line[len(_NEW) :], at + 1))
        elif line.startswith(b"new file mode "):
            self._take_new_file(line, at)
        elif line.startswith(b"index "):
            _check_index(line, at)
        else:
            _refuse_operation(line, at)
            return line.startswith(_SILENT)
        return True

    def _take_new_file(self, line: bytes, at: int) -> None:
        if self.old or self.new:
            raise _broken("'new file mode' comes below the names", at)
        if _mode_of(line.removeprefix(b"new file mode "), at) != _PLAIN_FILE:
            raise _no_edit("creates something else than a plain file", at)
        self.creates = True


def _git_header(lines: list[bytes], at: int, pair: Name) -> Header | None:
    """Read a ``diff --git`` header; None when no line of one follows, then it is text like any other."""
    said, end = _GitLines(), at + 1
    while end < len(lines) and lines[end].endswith(b"\n"):
        if lines[end].startswith(HUNK_MARK) or not said.take(lines[end], end):
            break
        end += 1
    if not said.old and not said.new and pair.text.endswith(b"\r"):
        raise _broken("its only names end in a carriage return", at)
    if end == at + 1:
        return None
    return Header(_names(said, at), pair, "yes" if said.creates else "no", end)


def _names(said: _GitLines, at: int) -> tuple[Name, ...]:
    for name in said.new:
        if _NO_FILE.match(name.text):
            raise _no_edit("deletes the file", name.line - 1)
    empty = [name for name in said.old if _NO_FILE.match(name.text)]
    if said.creates:
        if len(empty) < len(said.old):
            raise _broken("it creates a file, so its old name must be /dev/null", at)
        return tuple(said.new)
    if empty:
        raise _broken("its old name is /dev/null, but the line 'new file mode 100644' is missing", empty[0].line - 1)
    if bool(said.old) is not bool(said.new):
        raise _broken("it has only one of the lines --- and +++", at)
    return (*said.old, *said.new)


def _refuse_operation(line: bytes, at: int) -> None:
    for mark, words in _OPERATIONS.items():
        if line.startswith(mark):
            raise _no_edit(words, at)


def _check_index(line: bytes, at: int) -> None:
    found = _INDEX.match(line.removeprefix(b"index "))
    if found and not _mode_of(found[1], at).startswith("100"):
        raise _no_edit("is about something else than a regular file", at)


def _mode_of(text: bytes, at: int) -> str:
    found = _MODE.match(text)
    if found is None:
        raise _broken("a file mode is not an octal number", at)
    return found[1].decode("ascii")


def _is_epoch(name: bytes) -> bool:
    """Say whether a time stamp is the epoch: diff writes that of a file that does not exist."""
    found = _EPOCH.search(name)
    if found is None:
        return False
    day, time, hours, minutes = (part.decode("ascii") for part in found.groups())
    try:
        moment = datetime.strptime(f"{day} {time} {hours}{minutes}", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return False
    return moment == datetime(1970, 1, 1, tzinfo=UTC)


def _broken(problem: str, at: int) -> DiffError:
    hint = "begin with the lines '--- a/<path>' and '+++ b/<path>', followed by '@@ -<line>,<count> +<line>,<count> @@'"
    return DiffError(Fault.HEADER, f"the header is not usable: {problem}", line=at + 1, hint=hint)


def _no_edit(words: str, at: int) -> DiffError:
    hint = "this tool changes or creates the text of one regular file and nothing else"
    return DiffError(Fault.NOT_AN_EDIT, f"the diff {words}", line=at + 1, hint=hint)
