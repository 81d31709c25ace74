"""The header of a unified diff: which file it is about, and that it only edits or creates it (FS-05).

Reads the two forms that ``git apply`` reads: ``diff --git`` with its extended lines, and a bare ``---``/``+++`` pair.
Text before the header, such as a commit message, is passed over. The file that is written is always the tool's own
``path``; :class:`FileNames` holds the names of the header to it.
"""

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal

from soong.shared.core.errors import SoongError
from soong.shared.core.value import Value
from soong.shared.sandbox.paths import Located, Roots

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

_PREFIXES: Final = ("a/", "b/", "i/", "w/", "c/", "o/", "./")  # git's, those of diff.mnemonicPrefix, and diff's own
_NAME_END: Final = re.compile(rb"[\t\r\n\v\f]")
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|[abtnvfr\"\\])")
_LETTERS: Final = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_MAX_PAIR_BYTES: Final = 20_000


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
    Raises: DiffError, there is none, it is damaged, or it does something else than to edit or create one regular file.
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
    """The values of the extended lines below ``diff --git`` so far."""

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
            if self.old or self.new:
                raise _broken("'new file mode' comes below the names", at)
            if _mode_of(line.removeprefix(b"new file mode "), at) != _PLAIN_FILE:
                raise _no_edit("creates something else than a plain file", at)
            self.creates = True
        elif line.startswith(b"index "):
            found = _INDEX.match(line.removeprefix(b"index "))
            if found and not _mode_of(found[1], at).startswith("100"):
                raise _no_edit("is about something else than a regular file", at)
        else:
            for mark, words in _OPERATIONS.items():
                if line.startswith(mark):
                    raise _no_edit(words, at)
            return line.startswith(_SILENT)
        return True


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


class Fault(StrEnum):
    """The fault of a diff, or of its application."""

    HEADER = "header"
    OTHER_FILE = "other_file"
    SEVERAL_FILES = "several_files"
    NOT_AN_EDIT = "not_an_edit"
    HUNK = "hunk"
    NUMBER = "number"
    LEFTOVER = "leftover"
    MISPLACED_END = "misplaced_end"
    NO_CONTEXT = "no_context"
    MISMATCH = "mismatch"
    EXISTS = "exists"
    TOO_FAR = "too_far"


class DiffError(SoongError):
    """A diff that is refused; nothing has been changed. ``line`` is its own line, from 1; ``hunk`` counts from 1."""

    def __init__(self, fault: Fault, problem: str, *, line: int = 0, hunk: int = 0, hint: str = "") -> None:
        self.fault = fault
        self.line = line
        self.hunk = hunk
        self.hint = hint
        super().__init__(f"{problem} (line {line} of the diff)" if line else problem)


def _broken(problem: str, at: int) -> DiffError:
    hint = "begin with the lines '--- a/<path>' and '+++ b/<path>', followed by '@@ -<line>,<count> +<line>,<count> @@'"
    return DiffError(Fault.HEADER, f"the header is not usable: {problem}", line=at + 1, hint=hint)


def _no_edit(words: str, at: int) -> DiffError:
    hint = "this tool changes or creates the text of one regular file and nothing else"
    return DiffError(Fault.NOT_AN_EDIT, f"the diff {words}", line=at + 1, hint=hint)


class FileNames(Value):
    """The spellings of one file: as given, from the project, from the working directory, absolute."""

    accepted: frozenset[str]

    @classmethod
    def of(cls, located: Located, roots: Roots) -> "FileNames":
        lexical = os.path.normpath(roots.cwd / located.given)
        spellings = {os.path.normpath(located.given)}
        for path in (lexical, str(located.resolved)):
            spellings |= {path, os.path.relpath(path, roots.project), os.path.relpath(path, roots.cwd)}
        spellings = {name for name in spellings if not name.startswith("..")}
        return cls(frozenset(spellings | {name.lstrip("/") for name in spellings}))

    def check(self, header: Header) -> None:
        """Hold every name of a header to the file.
        Raises: DiffError, a name is another file's, or quoted in a way that cannot be read.
        """
        for name in header.names:
            if not self._has(_plain(name)):
                raise _other(name)
        if header.pair is not None and not self._has_pair(header.pair):
            raise _other(header.pair)

    def _has(self, name: bytes) -> bool:
        text = os.fsdecode(name)
        return text in self.accepted or (text.startswith(_PREFIXES) and text[2:] in self.accepted)

    def _has_pair(self, pair: Name) -> bool:
        """Say whether two names with a space between are both this file; the names may hold spaces themselves."""
        text = pair.text.removesuffix(b"\r")
        if len(text) > _MAX_PAIR_BYTES:
            return False
        quoted = _QUOTED.match(text)
        if quoted:
            splits = [(quoted[0], text[quoted.end() + 1 :])]
        else:
            splits = [(text[:at], text[at + 1 :]) for at, byte in enumerate(text) if byte == ord(" ")]
        return any(self._has(_unquoted(old, pair)) and self._has(_unquoted(new, pair)) for old, new in splits)


def _plain(name: Name) -> bytes:
    """Return a name without its quotes, or up to the time stamp after it."""
    if name.text.startswith(b'"'):
        quoted = _QUOTED.match(name.text)
        return _unquoted(quoted[0] if quoted else name.text, name)
    return _NAME_END.split(name.text, maxsplit=1)[0]


def _unquoted(text: bytes, name: Name) -> bytes:
    """Undo git's quoting of a name with unusual bytes."""
    if not text.startswith(b'"'):
        return text
    whole = _QUOTED.fullmatch(text)
    if whole is None or b"\\" in _ESCAPE.sub(b"", whole[1]):
        raise DiffError(Fault.HEADER, "a quoted file name cannot be read", line=name.line)
    return _ESCAPE.sub(lambda found: _byte(found[1]), whole[1])


def _byte(escaped: bytes) -> bytes:
    if escaped[0] in b"01234567":
        return bytes((int(escaped, 8),))
    return bytes((_LETTERS.get(escaped[0], escaped[0]),))


def _other(name: Name) -> DiffError:
    hint = "a diff changes the one file that 'path' names; change another file by a call of its own"
    return DiffError(Fault.OTHER_FILE, "the diff names another file than 'path'", line=name.line, hint=hint)
