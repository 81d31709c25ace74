"""JSON and text at the borders: strict reading, plain writing, canonical digests; text that is storable, and inert.

Strict means what the standard library does not: duplicate keys, NaN and Infinity, integers that a JavaScript reader
would round, half characters, and documents nested or sized to hurt the reader are refused (RFC 8259; RFC 7493 I-JSON
for numbers and strings).

Storable text is Unicode without NUL. PostgreSQL stores no NUL, and neither database half a character (a lone surrogate:
Python's stand-in for a byte that is not UTF-8, or half of a JSON escape). Each entrance refuses both with the words of
this module.

Inert text shows a reader all that it holds (RES-06, PER-04): the one list of characters that show nothing is here. A
terminal obeys control characters: they move the cursor, retitle the window, fill the clipboard (OSC 52). Other
characters hide words (zero width, fillers, tags) or turn the reading direction around.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import rfc8785

from soong.shared.core.errors import InvalidJsonError, UsageError
from soong.shared.core.value import Value

if TYPE_CHECKING:
    Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
    """A JSON value as plain Python data. Treated as immutable once it has left its maker."""
else:
    Json = Any  # msgspec reads no type that names itself

JsonObject: TypeAlias = Mapping[str, Json]

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 200
MAX_SAFE_INTEGER = 2**53


def parse_strict(text: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Json:
    """Read one JSON document or say exactly why it is not one.
    Raises: InvalidJsonError, not JSON, too large, too deep, a duplicate key, NaN/Infinity, or a number out of range.
    """
    size = len(text)  # at most a text's bytes: a far too large one is refused without a copy being made
    if size <= max_bytes:
        try:
            size = len(text.encode("utf-8") if isinstance(text, str) else text)
            text = text if isinstance(text, str) else text.decode("utf-8")
        except UnicodeError as error:
            raise InvalidJsonError(f"the document is not UTF-8: {error}") from error
    if size > max_bytes or not isinstance(text, str):
        raise InvalidJsonError(f"the document has {size} bytes; at most {max_bytes} are read")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise InvalidJsonError(f"the document is nested deeper than {max_depth} levels") from error
    except ValueError as error:
        raise InvalidJsonError(str(error)) from error
    if deeper_than(value, max_depth):
        raise InvalidJsonError(f"the document is nested deeper than {max_depth} levels")
    if "\\u" in text:
        _refuse_surrogates(value)
    return cast(Json, value)


dump: Final[Callable[[object], str]] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
"""Writes compact JSON for storage and wire; refuses NaN and what JSON cannot say."""


def canonical(value: Json) -> bytes:
    """Return the RFC 8785 form: equal values, equal bytes.
    Raises: InvalidJsonError, the value has no canonical form (NaN, an integer beyond 2^53, a lone surrogate).
    """
    try:
        return rfc8785.dumps(cast(Any, value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidJsonError(f"the value has no canonical form: {error}") from error


def digest(value: Json) -> str:
    """Return the lower-case hexadecimal SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _refuse_surrogates(value: object) -> None:
    # Half of a character can be escaped in JSON and stored nowhere.
    text = dump(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = ascii(text[max(0, error.start - 30) : error.start + 30])
        raise InvalidJsonError(f"a string holds a lone surrogate, which is not Unicode: {shown}") from error


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, as a decoder's ``parse_constant``."""
    raise InvalidJsonError(f"{name} is not a JSON number")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidJsonError(f"duplicate key {key!r} in one object")
        result[key] = value
    return result


def _safe_int(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_SAFE_INTEGER:
        raise InvalidJsonError(f"the integer {text[:40]} is beyond 2^53 and would be rounded by other readers")
    return int(text)


def finite_float(text: str) -> float:
    """Return a number that is not infinite, as a decoder's ``parse_float``. Raises: InvalidJsonError."""
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJsonError(f"the number {text[:40]} is too large for any reader")
    return value


_DECODER = json.JSONDecoder(
    parse_constant=refuse_constant, object_pairs_hook=_unique, parse_int=_safe_int, parse_float=finite_float
)
"""Made once: making it takes longer than a small document."""


def deeper_than(value: object, limit: int) -> bool:
    """Say whether a value that was read is nested deeper than ``limit`` levels; looks no deeper than that."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict | list):
                below += item.values() if isinstance(item, dict) else item
        level = below
        if not level:
            return False
    return True


Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a value to one of its parts."""

EXPECTED: Final = "Unicode text without NUL"
MOST_FAULTS: Final = 20
"""Faults of one document that an error names at once."""

_PARTS: Final = (list, tuple, Mapping)
_SHOWN_CHARS: Final = 30
"""Characters of a text that are shown around a fault."""


def dotted(path: Iterable[str | int]) -> str:
    """Return a place as people write it: ``steps[2].depends_on[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def fault(text: str) -> str:
    """Return what is wrong with a text, after the place in it, escaped; empty when nothing is."""
    at = text.find("\0")
    if at >= 0:
        return f"{_around(text, at)} holds a NUL character"
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{_around(text, error.start)} holds a lone surrogate, which is not Unicode"
    return ""


def faults(value: object) -> Iterator[tuple[Path, str]]:
    """Yield the place and the fault of each text in a JSON value, its keys among them, in document order.

    A faulty key is named at the place of its mapping, and its value is passed over. A part that is there several times,
    or in itself, is looked at once.
    """
    waiting: list[tuple[Path, object]] = [((), value)]
    seen: set[int] = set()
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, str):
            if found := fault(item):
                yield place, found
        elif isinstance(item, _PARTS) and id(item) not in seen:
            seen.add(id(item))
            deeper: list[tuple[Path, object]] = []
            for key, part in item.items() if isinstance(item, Mapping) else enumerate(item):
                if isinstance(key, str) and (found := fault(key)):
                    yield place, f"the key {found}"
                elif fault(part) if isinstance(part, str) else isinstance(part, _PARTS):
                    deeper.append(((*place, key), part))
            waiting.extend(reversed(deeper))


def require_text(what: str, *texts: str) -> None:
    """Raises: UsageError when a text is not storable; ``what`` names it."""
    for text in texts:
        if found := fault(text):
            raise UsageError(f"{what} {found}; expected {EXPECTED}")


def _around(text: str, at: int) -> str:
    start, end = max(0, at - _SHOWN_CHARS), at + _SHOWN_CHARS
    return f"{'…' if start else ''}{text[start:end]!a}{'…' if end < len(text) else ''}"


MAX_MARKS: Final = 3
"""Combining marks on one character. More of them cover the lines around it."""

_UNSURE: Final = re.compile(r"[^\n\t -~]+")
_PRINTABLE_AND_UNSEEN: Final = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
            *(0x17B4, 0x17B5),  # Khmer inherent vowels
            *(*range(0x180B, 0x180E), 0x180F),  # Mongolian variation selectors
            0x2800,  # Braille without a dot
            0x2D7F,  # Tifinagh consonant joiner
            *range(0xFE00, 0xFE10),  # variation selectors
            0x1107F,  # Brahmi number joiner
            0x16FE4,  # Khitan filler
            0x1BC9D,  # Duployan letter selector
            0x1D159,  # null note head
            *range(0xE0100, 0xE01F0),  # more variation selectors
        ),
    )
)
"""Characters that Python calls printable and no font draws. Python covers the rest: controls, formats, separators,
surrogates, private use and what is not assigned; every other default ignorable character is one of these."""

_NON_JOINER, _JOINER = "\u200c", "\u200d"
_STYLES: Final = "\ufe0e\ufe0f"
_KEYCAP, _KEYS = "\u20e3", "0123456789#*"
_SKINS: Final = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_VIRAMA: Final = 9


def is_seen(char: str) -> bool:
    """Say whether one character shows something, or is the ordinary space."""
    return char.isprintable() and char not in _PRINTABLE_AND_UNSEEN


def is_told_apart(text: str) -> bool:
    """Say whether every character of a text is seen, so that another text does not look the same for what is not."""
    return text.isprintable() and (text.isascii() or _PRINTABLE_AND_UNSEEN.isdisjoint(text))


def is_ignorable(char: str) -> bool:
    """Say whether a character may be left out of a name when names are compared: it shows and moves nothing."""
    return char in _PRINTABLE_AND_UNSEEN or unicodedata.category(char) == "Cf"


def inert(text: str, *, keeps_blanks: bool = False) -> str:
    r"""Return text in which every character only stands for itself.

    Invisible characters are spelled (``\x1b``, ``\u202e``), as are marks piled on one character. Line breaks and tabs
    stay, as do joiners and emoji styles where they change the look of their neighbours. ``keeps_blanks`` leaves the
    wide and narrow spaces of scripts as they are, for a reader who compares nothing. Linear in the text.
    """
    if text.isascii() and text.isprintable():
        return text
    return _respelled(text, _spelled, keeps_blanks=keeps_blanks)


def inert_json(document: str) -> str:
    r"""Return JSON text with the same value in which invisible characters are escapes of JSON (``\u202e``)."""
    return document if document.isascii() and document.isprintable() else _respelled(document, _json_escape)


def blanked(text: str) -> str:
    """Return text as one line for a label: a space in place of each line break, tab and character that is not seen."""
    return _respelled(text.replace("\n", " ").replace("\t", " "), lambda _char: " ")


def first_sentence(text: str) -> str:
    """Return a description's first sentence, on one line."""
    sentence, dot, _ = " ".join(text.split()).partition(". ")
    return f"{sentence}." if dot else sentence


def _respelled(text: str, spell: Callable[[str], str], *, keeps_blanks: bool = False) -> str:
    return _UNSURE.sub(lambda run: "".join(_shown(run, spell, keeps_blanks)), text)


def _shown(run: re.Match[str], spell: Callable[[str], str], keeps_blanks: bool) -> Iterator[str]:
    text, marks, is_kept = run.string, 0, True
    for at in range(run.start(), run.end()):
        char = text[at]
        marks = marks + 1 if unicodedata.combining(char) else 0
        if is_seen(char):
            is_kept = marks <= MAX_MARKS
        elif keeps_blanks and unicodedata.category(char) == "Zs":
            is_kept = True
        else:
            is_kept = is_kept and _is_at_work(text, at)
        yield char if is_kept else spell(char)


def _is_at_work(text: str, at: int) -> bool:
    """Say whether an unseen character changes how its neighbours look, as scripts and emoji need it."""
    char, before, after = text[at], text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if not before:
        return False
    if char in _STYLES:
        return _is_picture(before) or (before in _KEYS and after == _KEYCAP)
    if char not in (_NON_JOINER, _JOINER) or not after:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return after.isalpha()
    if char == _NON_JOINER:
        return unicodedata.bidirectional(before) == "AL" == unicodedata.bidirectional(after)
    return _is_picture(after) and (_is_picture(before) or before in _SKINS or before in _STYLES)


def _is_picture(char: str) -> bool:
    return unicodedata.category(char) in ("So", "Sm") and is_seen(char)


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


MAX_FRONT_CHARS: Final = 16 * 1024

_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


class FrontMatter(Value):
    """``fields`` is YAML that is not read yet; its first line is line 2 of the file."""

    fields: str
    body: str


def front_matter_of(text: str) -> FrontMatter | None:
    """Return the two parts of a file; None when it does not begin with front matter."""
    found = _FRONT.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    return None if found is None else FrontMatter(found[1], found.string[found.end() :].strip())
