"""Private keys and logins by the content of a file, under any name (FS-06, EVT-05).

A file whose head holds a private key or the token of a login is as sensitive as one with a sensitive name. A
later key, or one read from its second line on, is known by where its block begins and ends.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

HEAD_BYTES: Final = 8192
MAX_BLOCK_BYTES: Final = 64 * 1024
"""A block without an end is taken to end here: the longest keys have a quarter of it."""
LOGIN_BYTES: Final = 4096
_LOGIN_NAMES: Final = (
    "(?:refresh|access|id|oauth|auth|session)_?token|client_?secret|private_?key|api_?key"
    "|secret_?access_?key|client-key-data|master_?key"
)
MARKERS: Final = (
    f"-----BEGIN [A-Z0-9 ]{{0,40}}PRIVATE KEY|---- BEGIN SSH2|PuTTY-User-Key-File-|AGE-SECRET-KEY-|(?i:{_LOGIN_NAMES})"
)
"""What a file with a key may hold, as an expression for ripgrep; more files hold it than have a key."""

_KEY: Final = re.compile(
    # A line of its own begins a block; so does a marker that the key's own letters follow, as inside JSON.
    rb"^[ \t]*-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?$"
    rb"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\\+[rn]|\s)+[A-Za-z0-9+/=]{16}"
    rb"|^---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----"
    rb"|^PuTTY-User-Key-File-[0-9]"
    rb"|^AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{20}",
    re.MULTILINE,
)
_LOGIN: Final = re.compile(
    # A member of JSON, wherever it is; a line of YAML, INI or an environment file. The value is one opaque word with a
    # digit, which no name, call or sentence of a program is.
    rb"""["'](?:[A-Za-z0-9]{0,40}[_.-])?(?:%(names)s)["'][ \t]{0,40}:\s{0,40}["'](?=[^"'\s]{0,200}[0-9])%(value)s["']"""
    rb"""|^[ \t-]{0,40}(?:[A-Za-z0-9]{1,40}[_.-]){0,3}(?:%(names)s)[ \t]{0,40}[:=][ \t]{0,40}"""
    rb"""(?=["']?[^"'\s]{0,200}[0-9])["']?%(value)s["']?[ \t]{0,40}\r?$"""
    % {b"names": _LOGIN_NAMES.encode(), b"value": rb"[A-Za-z0-9+/=_.~|:-]{16,4096}"},
    re.MULTILINE | re.IGNORECASE,
)
_EDGE: Final = re.compile(
    rb"(?P<begin>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|---- BEGIN SSH2 [A-Z ]{0,40}PRIVATE KEY ----)"
    rb"|-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|---- END SSH2 [A-Z ]{0,40}PRIVATE KEY ----"
)
_BYTE_ORDER_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_WORDS: Final = b"PRIVATE KEY"
_LONGEST_EDGE: Final = 80
_CHUNK_BYTES: Final = 256 * 1024


def is_key(head: bytes) -> bool:
    """Say whether the head of a file holds a key or a login; also in UTF-16, whose letters are between zeros."""
    for mark in _BYTE_ORDER_MARKS:
        head = head.removeprefix(mark)
    head = head.replace(b"\0", b"")
    return _KEY.search(head) is not None or _LOGIN.search(head[:LOGIN_BYTES]) is not None


def holds_key(descriptor: int) -> bool:
    """Say whether the head of an open file holds a private key or a login."""
    return is_key(os.pread(descriptor, HEAD_BYTES, 0))


class KeyBlocks:
    """Follows a file from its start, in pieces cut anywhere, and knows whether it is inside a key's block."""

    def __init__(self) -> None:
        self._at = 0
        self._tail = b""
        self._begun: int | None = None

    @property
    def is_open(self) -> bool:
        return self._begun is not None and self._at - self._begun <= MAX_BLOCK_BYTES

    def feed(self, piece: bytes) -> list[tuple[int, int]]:
        """Take the next piece; return the blocks that end in it, as offsets from the file's start.

        A block begins at its first line and ends behind its last.
        """
        return list(self._fed(piece))

    def close(self) -> list[tuple[int, int]]:
        """Return the block that never ended, if there is one."""
        return [] if self._begun is None else [(self._begun, self._begun + MAX_BLOCK_BYTES)]

    def _fed(self, piece: bytes) -> Iterator[tuple[int, int]]:
        start, text = self._at - len(self._tail), self._tail + piece
        self._at += len(piece)
        seen = 0
        for edge in _EDGE.finditer(text) if _WORDS in text else ():
            seen = edge.end()
            yield from self._passed(start + edge.start(), start + seen, begins=edge["begin"] is not None)
        # An edge that is cut in two is seen with the next piece; one that was seen is not looked at again.
        self._tail = text[max(seen, len(text) - _LONGEST_EDGE) :]

    def _passed(self, start: int, end: int, *, begins: bool) -> Iterator[tuple[int, int]]:
        if self._begun is not None:
            yield self._begun, min(end, self._begun + MAX_BLOCK_BYTES)
        self._begun = start if begins else None


def blocks_of(descriptor: int) -> tuple[tuple[int, int], ...]:
    """Return the blocks of an open file, in constant memory but for their number."""
    blocks, at, found = KeyBlocks(), 0, list[tuple[int, int]]()
    while piece := os.pread(descriptor, _CHUNK_BYTES, at):
        found += blocks.feed(piece)
        at += len(piece)
    return (*found, *blocks.close())
