"""What a command tool says on stdout, held to the shape of a ToolResult (CMD-03, RES-01).

One JSON object with any of ``content``, ``summary``, ``data``, ``error``, ``is_error``, ``metadata``, ``artifacts`` and
``tool_call_id``, of which the last is ignored: a result belongs to the call that was made. Whatever is not of this
shape is ``invalid_output``. Texts are data: they are stripped of terminal escapes and never become instructions to us.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from soong.shared.core.jsontext import Json, JsonObject, dump, parse_strict
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.result import (
    ContentBlock,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolError,
    ToolFailure,
    ToolResult,
)
from soong.shared.tools.results.normalize import refusal

MAX_DEPTH: Final = 90
"""Below what is taken of arguments and stored of results, so that nothing later is the first to refuse it."""
MAX_BLOCKS: Final = 100
MAX_WORDS_CHARS: Final = 10_000
"""Of a summary, message or hint. The core cuts them shorter when secrets are out; half a one would not be found."""
MAX_NAME_CHARS: Final = 200
MAX_FACTS_BYTES: Final = 16 * 1024
"""Of metadata and of an error's details, which no artifact ever holds."""

CLAIMABLE: Final = frozenset(
    {
        ErrorType.EXECUTION_FAILED,
        ErrorType.INVALID_INPUT,
        ErrorType.FILE_NOT_FOUND,
        ErrorType.NOT_REGULAR_FILE,
        ErrorType.BINARY_FILE,
        ErrorType.PATH_CONFLICT,
        ErrorType.TEXT_NOT_FOUND,
        ErrorType.AMBIGUOUS_EDIT,
        ErrorType.PATCH_APPLY_FAILED,
        ErrorType.LIMIT_EXCEEDED,
        ErrorType.SERVER_UNAVAILABLE,
        ErrorType.TIMEOUT,
    }
)
"""Error types that speak of the tool's own work. The others are verdicts of the core, and no tool speaks for it."""

_Reader: TypeAlias = Callable[[str, Json], Json]


def read_result(tool_call_id: str, stdout: bytes, max_bytes: int) -> ToolResult:
    """Return the result of a tool's full output; its id is always ours.

    Raises:
        ToolError: ``invalid_output``, names the place and what is expected there.
    """
    document = _document(stdout, max_bytes)
    fields = _fields(document)
    content = _content(fields.get("content"))
    # Of `data` alone null is a value: a look-up that finds nothing says so.
    summary, data, has_data = fields.get("summary"), fields.get("data"), "data" in document
    if not (content or summary or has_data or fields.get("error") or fields.get("is_error")):
        raise _wrong("$", "says nothing; give content, summary, data or error")
    metadata: dict[str, Json] = {"tool": fields["metadata"]} if fields.get("metadata") else {}
    failure = _failure(fields, content)
    if failure is not None:
        result = refusal(tool_call_id, failure, data, **metadata)
        return ToolResult(
            tool_call_id, (*result.content, *content), result.summary, data, error=failure, metadata=metadata
        )
    line = in_a_line(str(summary or ""), MAX_WORDS_CHARS) or _line_of(content, data, has_data=has_data)
    is_bare_null = data is None and has_data and not summary
    shown = (JsonBlock(data),) if data is not None or is_bare_null else (TextBlock(line),)
    return ToolResult(tool_call_id, content or shown, line, data, metadata=metadata)


def _document(stdout: bytes, max_bytes: int) -> JsonObject:
    try:
        value = parse_strict(stdout.decode("utf-8"), max_bytes=max_bytes, max_depth=MAX_DEPTH)
        dump(value).encode("utf-8")  # what JSON can say and nobody can store: 1e999, half a surrogate pair
    except UnicodeDecodeError as error:
        raise ToolError(ErrorType.INVALID_OUTPUT, f"stdout is not UTF-8 (byte {error.start})", hint=_HINT) from error
    except ValueError as error:
        what = "stdout is empty" if not stdout.strip() else f"stdout is not one JSON document: {error}"
        raise ToolError(ErrorType.INVALID_OUTPUT, in_a_line(what, MAX_WORDS_CHARS), hint=_HINT) from error
    if not isinstance(value, Mapping):
        raise _wrong("$", "must be an object")
    return value


_HINT: Final = "the tool is broken: it must print one ToolResult as JSON on stdout and everything else on stderr"


def _wrong(place: str, problem: str) -> ToolError:
    message = in_a_line(f"stdout is not a ToolResult: {place}: {problem}", MAX_WORDS_CHARS)
    return ToolError(ErrorType.INVALID_OUTPUT, message, hint=_HINT)


def _text(place: str, value: Json) -> str:
    if not isinstance(value, str):
        raise _wrong(place, "must be string")
    return inert_text(value)


def _flag(place: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise _wrong(place, "must be boolean")
    return value


def _facts(place: str, value: Json) -> JsonObject:
    if not isinstance(value, Mapping):
        raise _wrong(place, "must be object")
    size = len(dump(value))
    if size > MAX_FACTS_BYTES:
        raise _wrong(place, f"has {size} bytes; at most {MAX_FACTS_BYTES} are taken, the rest belongs into data")
    return value


def _list(place: str, value: Json) -> Sequence[Json]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(place, "must be array")
    if len(value) > MAX_BLOCKS:
        raise _wrong(place, f"has {len(value)} items; at most {MAX_BLOCKS} are taken")
    return value


def _no_artifacts(place: str, value: Json) -> Json:
    if _list(place, value):
        raise _wrong(place, "must be empty; only Soong stores artifacts, large content becomes one by itself")
    return value


def _any(_place: str, value: Json) -> Json:
    return value


_FIELDS: Final[Mapping[str, _Reader]] = {
    "tool_call_id": _any,
    "is_error": _flag,
    "content": _list,
    "summary": _text,
    "data": _any,
    "artifacts": _no_artifacts,
    "error": _facts,
    "metadata": _facts,
}
_ERROR_FIELDS: Final[Mapping[str, _Reader]] = {
    "type": _text,
    "message": _text,
    "retryable": _flag,
    "hint": _text,
    "details": _facts,
}


def _fields(value: JsonObject, place: str = "$", known: Mapping[str, _Reader] = _FIELDS) -> dict[str, Json]:
    """Read an object's fields; null is as good as absent, an unknown one is an error."""
    unknown = [name for name in value if name not in known]
    if unknown:
        raise _wrong(f"{place}.{unknown[0][:100]}", f"is not a field; known are {', '.join(known)}")
    return {name: known[name](f"{place}.{name}", part) for name, part in value.items() if part is not None}


def _content(value: Json) -> tuple[ContentBlock, ...]:
    blocks = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return tuple(_block(f"$.content[{position}]", block) for position, block in enumerate(blocks))


def _block(place: str, block: Json) -> ContentBlock:
    if not isinstance(block, Mapping):
        raise _wrong(place, "must be object")
    match block.get("kind"):
        case "text" if set(block) == {"kind", "text"}:
            return TextBlock(_text(f"{place}.text", block["text"]))
        case "json" if set(block) == {"kind", "value"}:
            return JsonBlock(block["value"])
        case _:
            raise _wrong(place, 'must be {"kind": "text", "text": …} or {"kind": "json", "value": …}')


def _failure(fields: Mapping[str, Json], content: Sequence[ContentBlock]) -> ToolFailure | None:
    error, is_error = fields.get("error"), fields.get("is_error")
    if not isinstance(error, Mapping):
        if not is_error:
            return None
        words = str(fields.get("summary") or "") or _first_text(content) or "the tool reports an error"
        return ToolFailure(ErrorType.EXECUTION_FAILED, in_a_line(words, MAX_WORDS_CHARS))
    if is_error is False:
        raise _wrong("$.is_error", "is false next to an error")
    given = _fields(error, "$.error", _ERROR_FIELDS)
    if not given.get("message"):
        raise _wrong("$.error.message", "is missing; say what went wrong")
    return _claimed(given)


def _claimed(given: Mapping[str, Json]) -> ToolFailure:
    """Return the failure as far as a tool may say it; what it may not say is kept among the details."""
    claimed = str(given.get("type") or ErrorType.EXECUTION_FAILED)
    type_ = next((each for each in CLAIMABLE if each.value == claimed), ErrorType.EXECUTION_FAILED)
    details = given.get("details")
    kept: dict[str, Json] = dict(details) if isinstance(details, Mapping) else {}
    if type_.value != claimed:
        kept["said_type"] = in_a_line(claimed, MAX_NAME_CHARS)
    if given.get("retryable", type_.is_retryable) != type_.is_retryable:
        kept["said_retryable"] = given["retryable"]
    message = _cut(str(given["message"]))
    return ToolFailure(type_, message, _cut(str(given.get("hint") or "")), kept)


def _line_of(content: Sequence[ContentBlock], data: Json, *, has_data: bool) -> str:
    text = _first_text(content)
    if text:
        return in_a_line(text.partition("\n")[0], MAX_WORDS_CHARS)
    if isinstance(data, Mapping):
        return "object"
    return "null" if data is None and has_data else "done"


def _first_text(content: Sequence[ContentBlock]) -> str:
    return next((block.text for block in content if isinstance(block, TextBlock)), "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS_CHARS else f"{text[:MAX_WORDS_CHARS]}…"


def in_a_line(text: str, max_chars: int) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(inert_text(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_lines(text: str, max_chars: int) -> str:
    """Return the last full lines of a log without secrets, which best show why a program ended.

    A line that does not fit is left out rather than cut.
    """
    kept: list[str] = []
    room = max_chars
    for line in reversed(text.rstrip().split("\n")):
        shown = line if len(line) < max_chars else f"[a line of {len(line)} characters]"
        room -= len(shown) + 1
        if room < 0:
            kept.append("[…]")
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip()
