"""Arguments of a tool as words of a command line: ``key=value`` by the schema's type, or JSON (EXE-12).

Only what a word means is settled here. The pipeline checks them against the schema, as with every call.
"""

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType

from soong.shared.core.errors import InvalidJsonError, UsageError
from soong.shared.core.jsontext import MAX_BYTES, Json, JsonObject, parse_strict


def read_arguments(tool: str, schema: JsonObject, words: Sequence[str], text: str | None) -> dict[str, Json]:
    """Return the arguments of a call: the JSON object of ``--args``, together with the ``key=value`` words.

    Raises:
        UsageError: says which word is wrong and what it may be.
    """
    arguments = {} if text is None else _read_object(text)
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"{word!r} is not an argument; write name=value, or --args JSON")
        if name in arguments:
            raise UsageError(f"the argument {name!r} is given twice; give it once")
        arguments[name] = _read_value(name, value, _part(tool, schema, name))
    return arguments


def _part(tool: str, schema: JsonObject, name: str) -> JsonObject:
    """Return the schema of one argument; an open schema takes any name."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    part = known.get(name)
    if isinstance(part, Mapping):
        return part
    if schema.get("additionalProperties", True) is not False:
        return {}
    close = get_close_matches(name, list(known), 1)
    hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known) or 'none'}"
    raise UsageError(f"{tool} has no argument {name!r}; {hint}")


def _read_value(name: str, value: str, part: JsonObject) -> Json:
    kind = part.get("type")
    if kind == "string":
        return value
    try:
        read = parse_strict(value)
    except InvalidJsonError as error:
        choice = part.get("enum")
        if kind is None and (not isinstance(choice, Sequence) or value in choice):
            return value
        why = f": {error}" if kind in ("array", "object") else ""
        raise UsageError(f"{name}={_shown(value)}: {_wanted(kind)}{why}") from error
    if kind is not None and not _is(kind, read):
        raise UsageError(f"{name}={_shown(value)}: {_wanted(kind)}")
    return read


def _wanted(kind: Json) -> str:
    forms = {
        "integer": "an integer such as 3",
        "number": "a number such as 0.5",
        "boolean": "true or false",
        "array": 'a JSON array such as ["a", "b"]',
        "object": 'a JSON object such as {"a": 1}',
    }
    return f"it takes {forms.get(str(kind), 'a JSON value')}"


def _is(kind: Json, value: Json) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds: dict[str, type | UnionType] = {"integer": int, "number": int | float, "array": list, "object": dict}
    return kind != "boolean" and isinstance(value, kinds.get(str(kind), object))


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else f"{value[:60]}…")


def _read_object(text: str) -> dict[str, Json]:
    try:
        value = parse_strict(_source(text))
    except InvalidJsonError as error:
        raise UsageError(f"--args is not the JSON of an object: {error}") from error
    if not isinstance(value, dict):
        raise UsageError('--args takes a JSON object, such as \'{"path": "README.md"}\'')
    return value


def _source(text: str) -> str | bytes:
    """Return the JSON text itself, that of standard input (``-``) or of a file (``@name``); one byte over the limit."""
    if text == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("--args - reads standard input, which is a terminal; pipe the JSON in, or use @file")
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--args {text!r}: not a file; name one, or use - for standard input")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"--args {text!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
