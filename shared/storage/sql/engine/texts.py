"""Values as the texts that columns and parameters hold."""

import hashlib
import json
from typing import Any, Final

from soong.shared.core.jsontext import finite_float, refuse_constant

encode_ascii: Final = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode
_encode: Final = json.JSONEncoder(
    check_circular=False, allow_nan=False, separators=(",", ":"), ensure_ascii=False
).encode


def pack(value: object) -> str:
    """Return JSON text for a column. Lone surrogates, which no database takes as text, are escaped."""
    text = _encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return encode_ascii(value)
    return text


def unpack(text: str) -> Any:
    """Return the value of JSON text. Raises: ValueError, RecursionError."""
    try:
        # Ours has no blanks around it; to look for them takes as long as to read what is there.
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        value, end = None, -1
    return value if end == len(text) else _DECODER.decode(text)


def plain(text: str) -> str:
    """Return free text as both databases can keep it: NUL and lone surrogates become U+FFFD."""
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def digest_of(text: str) -> str:
    """Return the SHA-256 of stored text."""
    return hashlib.sha256(text.encode()).hexdigest()


_DECODER: Final = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)
"""Less strict than what comes from outside: outputs may hold integers beyond 2^53, and half characters as escapes."""
