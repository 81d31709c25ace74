"""Whether the names in a diff's header are the file that the call is about (FS-05).

A name is only ever compared; it never chooses what is written.
"""

import os
import re
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.paths import Located, Roots
from soong.shared.toolsets.code.diff_fault import DiffError, Fault
from soong.shared.toolsets.code.diff_header import Header, Name

_PREFIXES: Final = ("a/", "b/", "i/", "w/", "c/", "o/", "./")  # git's, those of diff.mnemonicPrefix, and diff's own
_NAME_END: Final = re.compile(rb"[\t\r\n\v\f]")
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|[abtnvfr\"\\])")
_LETTERS: Final = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_MAX_PAIR_BYTES: Final = 20_000


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

        Raises:
            DiffError: a name is another file's, or quoted in a way that cannot be read.
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
