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

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.sandbox.descriptors import PathRefusedError, opened_below
from soong.shared.sandbox.threads import check
from soong.shared.toolsets.code.rg import MAX_COLUMNS, Match

_BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_MAX_WIDE_BYTES: Final = 16 * 1024 * 1024
"""Text in UTF-16 has no place in bytes that can be looked up, so it is turned as a whole, as far as this."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A line as it is in the file. ``text`` is cut at ``MAX_COLUMNS`` bytes, with a mark."""

    path: str
    line: int
    text: str


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
        if wide is None:
            there = os.pread(descriptor, MAX_COLUMNS + 1, start + match.offset)
        else:
            there = wide[match.offset : match.offset + MAX_COLUMNS + 1]
        line, newline, _ = there.partition(b"\n")
        is_whole = bool(newline) or len(there) <= MAX_COLUMNS
        is_same = match.text == line if is_whole else match.text[:MAX_COLUMNS] == line[:MAX_COLUMNS]
        if is_same:
            yield Confirmed(match.path, match.line, _shown(line, is_whole=is_whole))


def _narrowed(descriptor: int) -> bytes:
    """Return a UTF-16 text as ripgrep saw it."""
    content = os.pread(descriptor, _MAX_WIDE_BYTES, 0)
    return content.decode("utf-16", "replace").encode("utf-8")


def _shown(line: bytes, *, is_whole: bool) -> str:
    if is_whole:
        return line.decode("utf-8", "replace").rstrip("\r")
    return f"{line[:MAX_COLUMNS].decode('utf-8', 'ignore')} [the line continues]"
