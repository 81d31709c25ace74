"""Taking secrets out of what is stored or published (EVT-05).

Two nets: the exact values of settings and environment entries that are marked secret (also as they look inside JSON,
URLs, hexadecimal and base64), and the shapes of well-known tokens. Digests are computed over real inputs, before this.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from soong.shared.core.jsontext import Json
from soong.shared.core.patterns import LinearPattern
from soong.shared.core.value import Value

MARK = "[redacted]"
MIN_SECRET_CHARS = 6
"""Shorter values are not taken out: they would match everywhere and hide nothing worth hiding."""

_KEY = "[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?"
_TOKENS: tuple[tuple[str, str], ...] = (
    # A marker that is cheap to look for, and the whole shape. A text without a marker is never scanned by its pattern.
    (
        "-----BEGIN ",
        rf"-----BEGIN {_KEY}-----[\s\S]*?(?:-----END {_KEY}-----|\Z)",
    ),
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
_COMPILED: tuple[tuple[str, re.Pattern[str] | LinearPattern], ...] = tuple(
    # A text of nothing but beginnings of a web token would be searched to its end from each of them.
    (marker, LinearPattern(pattern) if marker == "eyJ" else re.compile(pattern))
    for marker, pattern in _TOKENS
)
_MARKERS = tuple(marker for marker, _ in _TOKENS)
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_LONGEST_TOKEN = 4096
_LONGEST_HELD = 64
_CONTEXT = 16
"""Characters before a token that its pattern may look back at."""


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
        return self._redacted(value) if self.may_hold_secrets(value) else value

    def mapping(self, value: Mapping[str, Json]) -> Mapping[str, Json]:
        """Like :meth:`value`, for an object."""
        return self._redacted_mapping(value) if self.may_hold_secrets(value) else value

    def may_hold_secrets(self, value: Json) -> bool:
        """Say whether anything of a value needs a closer look: most hold nothing, and one search for each secret and
        marker in all strings at once costs a tenth of one in each.
        """
        text = "\n".join(_texts_of(value))
        is_in_text = text.__contains__  # mapped: a generator takes longer than the searches
        return any(map(is_in_text, _MARKERS)) or any(map(is_in_text, self.values))

    def _redacted(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._redacted_mapping(value)
        if isinstance(value, Sequence):
            items = [self._redacted(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    def _redacted_mapping(self, value: Mapping[str, Json]) -> Mapping[str, Json]:
        pairs = {self.text(key): self._redacted(item) for key, item in value.items()}
        is_same = all(pairs.get(key, _MISSING) is item for key, item in value.items())
        return value if is_same else pairs

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where secrets are, as (start, end), in no order; they may overlap."""
        patterns: list[re.Pattern[str] | LinearPattern] = [pattern for marker, pattern in _COMPILED if marker in text]
        patterns += [re.compile(re.escape(value)) for value in self.values if value in text]
        return [match.span() for pattern in patterns for match in pattern.finditer(text)]

    def stream(self) -> "StreamRedactor":
        """Return a redactor for text that comes in pieces."""
        return StreamRedactor(self)


_MISSING = object()
_WITHOUT_TEXT = frozenset({int, float, bool, type(None)})


def _texts_of(value: Json) -> list[str]:
    """Return every string and key of a JSON value, in no order."""
    texts: list[str] = []
    rest: list[Any] = [value]
    for item in rest:  # which grows meanwhile; the usual types first, as looking for an abstract one takes longer
        kind = type(item)
        if kind is str:
            texts.append(item)
        elif kind in _WITHOUT_TEXT:
            continue
        elif kind is dict:
            texts += item
            rest += item.values()
        elif kind is list or kind is tuple:
            rest += item
        elif isinstance(item, str):
            texts.append(item)
        elif isinstance(item, Mapping):
            texts += item
            rest += item.values()
        elif isinstance(item, Sequence):
            rest += item
    return texts


class StreamRedactor:
    """Redacts a stream whose pieces may cut a secret anywhere.

    Holds back as much of the end as the longest secret could need and never cuts inside a secret. One stream, one
    instance; :meth:`close` gives the rest.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._hold = max([_LONGEST_TOKEN, *(len(value) for value in redactor.values)])
        self._pending = ""
        self._next = 2 * self._hold
        """The length at which it is searched again: not all of a secret without an end at each piece."""

    @property
    def pending(self) -> str:
        """What is held back, with its secrets."""
        return self._pending

    def feed(self, piece: str) -> str:
        """Take a piece and return what can be shown now; may be empty."""
        self._pending += piece
        if len(self._pending) <= self._next:
            return ""
        cut = self._safe_cut()
        if cut == 0 and len(self._pending) > _LONGEST_HELD * self._hold:
            self._pending = ""  # one endless secret: memory stays bounded and nothing of it is shown
            return MARK
        shown, self._pending = self._redactor.text(self._pending[:cut]), self._pending[cut:]
        self._next = 2 * max(self._hold, len(self._pending))
        return shown

    def close(self) -> str:
        """Return the rest."""
        rest, self._pending = self._redactor.text(self._pending), ""
        return rest

    def _safe_cut(self) -> int:
        """Return where the text can be cut so that no secret, nor what it is recognised by, lies on both sides."""
        cut = len(self._pending) - self._hold
        for start, end in sorted(self._redactor.spans(self._pending), reverse=True):
            if start - _CONTEXT < cut < end + 1:
                cut = max(0, start - _CONTEXT)
        return cut


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
