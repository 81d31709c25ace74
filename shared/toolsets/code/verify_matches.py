"""Holding ripgrep's words against the files: what a search shows is read by descriptor (FS-07).

ripgrep opens by path. While it walks, a directory can be swapped for a link to elsewhere, and it would read there. So
each line that it names is read again from the file at that path without any link in it, and shown only if
it is the same: what ripgrep may have read elsewhere reaches nobody.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from threading import Event
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError, opened_below
from soong.shared.sandbox.threads import check
from soong.shared.toolsets.code.rg import MAX_COLUMNS, Match

_BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_PIECE_BYTES: Final = 1024 * 1024
_MAX_WIDE_BYTES: Final = 16 * 1024 * 1024
"""Text in UTF-16 has no place in bytes that can be looked up, so it is turned as a whole, as far as this."""


class Confirmed(Value):
    """A line as it is in the file. ``text`` is cut to ``MAX_COLUMNS`` bytes, with marks, and holds the match.

    ``column`` is the byte of a cut line, from 1, at which the match begins; 0 for a line that is shown in full.
    """

    path: str
    line: int
    text: str
    column: int = 0


def confirmed(folder: int, matches: Iterable[Match], stop: Event, file: int | None = None) -> list[Confirmed]:
    """Return those of the matches, sorted by path, that hold; ``file`` is the one file of a search in no directory."""
    found: list[Confirmed] = []
    for path, lines in groupby(matches, key=lambda match: match.path):
        check(stop)
        if file is not None:
            found += _confirmed_in(file, lines)
            continue
        try:
            with opened_below(folder, path) as descriptor:
                found += _confirmed_in(descriptor, lines)
        except (PathRefusedError, OSError):
            continue  # gone, or no longer what ripgrep read
    return found


def _confirmed_in(descriptor: int, matches: Iterable[Match]) -> Iterator[Confirmed]:
    head = os.pread(descriptor, len(_BOM), 0)
    wide = _narrowed(descriptor) if head.startswith(_WIDE_BOMS) else None
    start = len(_BOM) if head == _BOM else 0  # ripgrep counts from behind it
    for match in matches:
        at = start + match.offset
        line, is_full = _line(wide, descriptor, at)
        # ripgrep gives a last line without an ending one of its own.
        is_same = match.text in (line, line + b"\r") if is_full else match.text[:MAX_COLUMNS] == line[:MAX_COLUMNS]
        if is_same and is_full:
            yield Confirmed(match.path, match.line, line.decode("utf-8", "replace").rstrip("\r"))
        elif is_same:
            line, is_full = _line(wide, descriptor, at + match.shown_from)
            yield Confirmed(match.path, match.line, _cut(line, match.shown_from, is_full=is_full), match.column)


def _line(wide: bytes | None, descriptor: int, at: int) -> tuple[bytes, bool]:
    """Return the text from an offset to the line's end, or one byte more than is shown; and whether it is all of it."""
    there = os.pread(descriptor, MAX_COLUMNS + 1, at) if wide is None else wide[at : at + MAX_COLUMNS + 1]
    line, newline, _ = there.partition(b"\n")
    return line, bool(newline) or len(there) <= MAX_COLUMNS


def _narrowed(descriptor: int) -> bytes:
    """Return a UTF-16 text as ripgrep saw it."""
    content = os.pread(descriptor, _MAX_WIDE_BYTES, 0)
    return content.decode("utf-16", "replace").encode("utf-8")


def _cut(line: bytes, begin: int, *, is_full: bool) -> str:
    text = line[:MAX_COLUMNS].decode("utf-8", "ignore").rstrip("\r")
    return (f"[from byte {begin + 1}] " if begin else "") + text + ("" if is_full else " [the line continues]")


def is_binary(descriptor: int, stop: Event) -> bool:
    """Say whether a file holds a NUL, unless it is UTF-16, which ripgrep decodes."""
    at, piece = 0, os.pread(descriptor, _PIECE_BYTES, 0)
    if piece.startswith(_WIDE_BOMS):
        return False
    while piece and b"\0" not in piece:
        check(stop)
        at += len(piece)
        piece = os.pread(descriptor, _PIECE_BYTES, at)
    return bool(piece)
