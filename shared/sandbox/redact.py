"""Text that may be stored, published and shown: without secrets (EVT-05), and inert (CMD-01).

Two nets: the exact values of settings and environment entries that are marked secret (also as they look inside JSON,
URLs, hexadecimal and base64), and the shapes of well-known tokens. Digests are computed over real inputs, before this.

A terminal obeys what it is shown: it overwrites lines, retitles windows, fills the clipboard (OSC 52), makes one link
look like another (OSC 8), turns the reading direction around. Neither a person nor a model is shown any of that.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import is_
from types import NoneType
from typing import Any, Final
from urllib.parse import quote, quote_plus

from soong.shared.core.jsontext import Json, inert, is_told_apart
from soong.shared.core.value import Value

MARK = "[redacted]"
MIN_SECRET_CHARS = 6
"""Shorter values are not taken out: they would match everywhere and hide nothing worth hiding."""

_KEY_NAME = "[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?"
_TOKENS: tuple[tuple[str, str], ...] = (
    # A marker that is cheap to look for, and the whole shape. A text without a marker is never scanned by its pattern.
    ("-----BEGIN ", rf"-----BEGIN {_KEY_NAME}-----[\s\S]*?(?:-----END {_KEY_NAME}-----|\Z)"),
    ("---- BEGIN SSH2", r"---- BEGIN SSH2 [A-Z ]*PRIVATE KEY ----[\s\S]*?(?:---- END SSH2 [A-Z ]*PRIVATE KEY ----|\Z)"),
    ("Private-Lines: ", r"(?<=Private-Lines: )\d+\r?\n(?: *(?:\d+\t)?[A-Za-z0-9+/]{20,}={0,2}(?:\r?\n|\Z))+"),
    ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{40,}"),
    ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
    ("ASIA", r"\bASIA[0-9A-Z]{16}\b"),
    ("soong_tok_", r"\bsoong_tok_[0-9a-v]{26,32}_[A-Za-z0-9_-]{43}"),
    ("sk-", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("gh", r"\bgh[pousr]_[A-Za-z0-9]{36,}"),
    ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{22,}"),
    ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    ("npm_", r"\bnpm_[A-Za-z0-9]{36}"),
    ("pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("_live_", r"\b[sr]k_live_[A-Za-z0-9]{16,}"),
    ("eyJ", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("earer ", r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"),
    ("://", r"(?<=://)[^\s/:@'\"]{0,128}:[^\s/@'\"]{1,256}(?=@)"),
)
_MAX_PROGRAM_BYTES: Final = 1024 * 1024
"""The size of a compiled pattern with its caches; RE2's own limit is 8 MiB."""


@lru_cache(maxsize=1)
def _linear(pattern: str) -> Any:
    import re2  # 15 ms that `soong --help` does not pay

    options = re2.Options()
    options.max_mem = _MAX_PROGRAM_BYTES
    return re2.compile(pattern.encode(), options)


class LinearPattern(Value):
    """A pattern that ``re`` would search in quadratic time. RE2 does not backtrack; its words are of ASCII."""

    pattern: str

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the places of the matches, in characters."""
        data = text.encode("utf-8", "surrogatepass")  # a text may hold half a surrogate pair
        is_ascii = len(data) == len(text)
        at = chars = 0
        for match in _linear(self.pattern).finditer(data):
            start, end = match.span()
            if is_ascii:
                yield start, end
                continue
            first = chars + len(data[at:start].decode("utf-8", "surrogatepass"))
            at, chars = end, first + len(data[start:end].decode("utf-8", "surrogatepass"))
            yield first, chars

    def sub(self, replacement: str, text: str) -> str:
        pieces, at = [], 0
        for start, end in self.spans(text):
            pieces += [text[at:start], replacement]
            at = end
        return "".join((*pieces, text[at:])) if pieces else text


_COMPILED: tuple[tuple[str, re.Pattern[str] | LinearPattern], ...] = tuple(
    # A text of nothing but beginnings of a web token would be searched to its end from each of them.
    (marker, LinearPattern(pattern) if marker == "eyJ" else re.compile(pattern))
    for marker, pattern in _TOKENS
)
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_LONGEST_TOKEN = 4096
_LONGEST_HELD = 64
_CONTEXT = 16
"""Characters before a token that its pattern may look back at."""

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
"""The marks of files that may hold a key, as an expression for ripgrep; files without a key may match."""

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


_WITHOUT_TEXT: Final = frozenset({bool, int, float, NoneType})


class Redactor(Value):
    """Replaces secrets by a mark in texts and JSON values. Immutable; built once a process by :func:`redactor`."""

    UNSHOWN = frozenset({"values"})

    values: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Return the text without secrets; the same object when it holds none."""
        if len(text) < MIN_SECRET_CHARS:
            return text
        for value in self.values:
            if value in text:
                text = text.replace(value, MARK)
        for marker, pattern in _COMPILED:
            if marker in text:
                text = pattern.sub(MARK, text)
        return text

    def value(self, value: Json) -> Json:
        """Return a JSON value with every string and key redacted; the same object when nothing was."""
        if isinstance(value, str):
            return self.text(value)
        if type(value) in _WITHOUT_TEXT:
            return value
        if isinstance(value, Mapping):
            return self.mapping(value)
        if isinstance(value, Sequence):
            items = [self.value(item) for item in value]
            return value if all(map(is_, items, value)) else items
        return value

    def mapping(self, value: Mapping[str, Json]) -> Mapping[str, Json]:
        """Like :meth:`value`, for an object."""
        pairs = {self.text(key): self.value(item) for key, item in value.items()}
        # Fewer pairs: a redacted key has met another of that name.
        is_same = (
            len(pairs) == len(value) and all(map(is_, pairs, value)) and all(map(is_, pairs.values(), value.values()))
        )
        return value if is_same else pairs

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where secrets are, as (start, end), in no order; they may overlap."""
        found: list[tuple[int, int]] = []
        shapes = (pattern for marker, pattern in _COMPILED if marker in text)
        values = (re.compile(re.escape(value)) for value in self.values if value in text)
        for pattern in (*shapes, *values):
            if isinstance(pattern, LinearPattern):
                found += pattern.spans(text)
            else:
                found += (match.span() for match in pattern.finditer(text))
        return found

    def stream(self) -> "StreamRedactor":
        return StreamRedactor(self)


class StreamRedactor:
    """Redacts a stream whose pieces may cut a secret anywhere. Holds back as much of the end as the longest secret
    could need and never cuts inside a secret. One stream, one instance; :meth:`close` gives the rest.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._hold = max([_LONGEST_TOKEN, *(len(value) for value in redactor.values)])
        self._pending = ""
        self._next = 2 * self._hold
        """The length at which it is searched again: not all of a secret without an end at each piece."""

    @property
    def pending(self) -> str:
        return self._pending

    def feed(self, piece: str) -> str:
        """Take a piece and return what can be shown now; may be empty."""
        self._pending += piece
        if len(self._pending) <= self._next:
            return ""
        # No secret, nor what it is recognised by, lies on both sides of the cut.
        cut = len(self._pending) - self._hold
        for start, end in sorted(self._redactor.spans(self._pending), reverse=True):
            if start - _CONTEXT < cut < end + 1:
                cut = max(0, start - _CONTEXT)
        if cut == 0 and len(self._pending) > _LONGEST_HELD * self._hold:
            self._pending = ""  # one endless secret: memory stays bounded and nothing of it is shown
            return MARK
        shown, self._pending = self._redactor.text(self._pending[:cut]), self._pending[cut:]
        self._next = 2 * max(self._hold, len(self._pending))
        return shown

    def close(self) -> str:
        rest, self._pending = self._redactor.text(self._pending), ""
        return rest


def redactor(secrets: Iterable[str] = ()) -> Redactor:
    """Build a redactor for the values of entries marked secret, each also in its usual encodings."""
    forms = {form for secret in secrets if len(secret) >= MIN_SECRET_CHARS for form in _forms(secret)}
    # Longest first: a secret that contains another must not be cut open by it.
    return Redactor(tuple(sorted(forms, key=lambda form: (-len(form), form))))


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it looks as it is, inside JSON and URLs, in hexadecimal and in base64."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield from (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield from (quoted, _PERCENT.sub(lambda code: code[0].lower(), quoted))
    yield from (raw.hex(), raw.hex().upper())
    for lead in range(3):
        # Three bytes make four letters, so what stands before decides the letters: "user:" before a password does. The
        # first and last are shared with what stands around, and left alone.
        letters = base64.b64encode(bytes(lead) + raw).decode()[-(-lead * 8 // 6) : (lead + len(raw)) * 8 // 6]
        yield from (letters, letters.replace("+", "-").replace("/", "_"))


def is_key(head: bytes) -> bool:
    """Say whether the head of a file holds a key or a login; also in UTF-16, whose letters are between zeros."""
    for mark in _BYTE_ORDER_MARKS:
        head = head.removeprefix(mark)
    head = head.replace(b"\0", b"")
    return _KEY.search(head) is not None or _LOGIN.search(head[:LOGIN_BYTES]) is not None


def holds_key(descriptor: int) -> bool:
    return is_key(os.pread(descriptor, HEAD_BYTES, 0))


class KeyBlocks:
    """Follows a file from its start, in pieces cut anywhere, and keeps whether it is inside a key's block."""

    def __init__(self) -> None:
        self._at = 0
        self._tail = b""
        self._begun: int | None = None

    @property
    def is_open(self) -> bool:
        return self._begun is not None and self._at - self._begun <= MAX_BLOCK_BYTES

    def feed(self, piece: bytes) -> list[tuple[int, int]]:
        """Take the next piece; return the blocks that end in it, as offsets from the file's start. A block begins at
        its first line and ends behind its last.
        """
        start, text = self._at - len(self._tail), self._tail + piece
        self._at += len(piece)
        found, seen = list[tuple[int, int]](), 0
        for edge in _EDGE.finditer(text) if _WORDS in text else ():
            seen = edge.end()
            if self._begun is not None:
                found.append((self._begun, min(start + seen, self._begun + MAX_BLOCK_BYTES)))
            self._begun = start + edge.start() if edge["begin"] is not None else None
        # An edge that is cut in two is seen with the next piece; one that was seen is not looked at again.
        self._tail = text[max(seen, len(text) - _LONGEST_EDGE) :]
        return found

    def close(self) -> list[tuple[int, int]]:
        """Return the block that never ended, if there is one."""
        return [] if self._begun is None else [(self._begun, self._begun + MAX_BLOCK_BYTES)]


def blocks_of(descriptor: int) -> tuple[tuple[int, int], ...]:
    """Return the blocks of an open file, in constant memory but for their number."""
    blocks, at, found = KeyBlocks(), 0, list[tuple[int, int]]()
    while piece := os.pread(descriptor, _CHUNK_BYTES, at):
        found += blocks.feed(piece)
        at += len(piece)
    return (*found, *blocks.close())


# An introducer ends the string before it, as on a terminal: looking past it, a text of introducers would be searched to
# its end from each of them.
_CONTROL_STRING: Final = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
_SEQUENCE: Final = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_SHORT: Final = r"\x1b[ -/]*[0-~]"
# A control string that never ends loses only its introducer: nothing behind it may disappear.
_ESCAPES: Final = re.compile(f"{_CONTROL_STRING}|{_SEQUENCE}|{_SHORT}")

_LONE: Final = re.compile("[\ud800-\udfff]")

_WORD: Final = re.compile(r"[!-~]*")
"""The shapes of tokens are of printable ASCII without spaces: an unfinished one is within the last such word."""
_ADDRESS: Final = re.compile(r"://\S{0,400}\Z")
"""An address may have a password of any letters before its host."""
_ADDRESS_CHARS: Final = 500


def inert_text(text: str) -> str:
    """Return text without anything that a terminal would obey or hide.

    Escape sequences go, carriage returns become line ends (what was overwritten is shown before what overwrote it), and
    what :func:`soong.shared.core.jsontext.inert` does not leave is spelled. Bytes that are not text show as one
    replacement character. Linear in the text.
    """
    if text.isascii() and is_told_apart(text):
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return inert(_LONE.sub("\ufffd", _ESCAPES.sub("", lines)), keeps_blanks=True)


def decoded(output: bytes) -> str:
    """Return the output of a program as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return output.decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class LiveText:
    """One growing text. :meth:`shown` may change what it showed before, but never shows more of a secret."""

    redactor: Redactor
    _stream: StreamRedactor = field(init=False)
    _settled: str = ""
    _values: tuple[str, ...] = field(init=False)
    """Secret values that are not one word of ASCII."""

    def __post_init__(self) -> None:
        self._stream = self.redactor.stream()
        self._values = tuple(value for value in self.redactor.values if not _WORD.fullmatch(value))

    def feed(self, piece: str) -> None:
        self._settled += self._stream.feed(piece)

    def shown(self, *, is_complete: bool = False) -> str:
        """Return what can be shown of it; all of it when nothing more comes."""
        pending = self._stream.pending
        cut = len(pending) if is_complete else self._cut(pending)
        return self._settled + self.redactor.text(pending[:cut])

    def _cut(self, text: str) -> int:
        last_word = _WORD.match(text[::-1])
        cut = len(text) - (0 if last_word is None else last_word.end())
        tail = max(0, len(text) - _ADDRESS_CHARS)
        if (address := _ADDRESS.search(text, tail)) is not None:
            cut = min(cut, address.start())
        # A value that begins before the cut must end before it, too, also one that has not ended yet.
        for value in self._values:
            start = text.find(value[0], max(0, cut - len(value) + 1))
            while 0 <= start < cut and not value.startswith(text[start : start + len(value)]):
                start = text.find(value[0], start + 1)
            cut = start if 0 <= start < cut else cut
        return cut
