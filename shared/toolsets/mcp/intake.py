"""A server's messages, judged one by one before the SDK reads them (MCP-01.n).

The SDK refuses a list for one bad entry and drops a reply that it cannot read, and its call waits. Here a text becomes
messages that the SDK takes: clear errors are corrected, an unreadable reply becomes an error of its own call with the
beginning of its text, and lists and results pass as they were sent, for :func:`raw_result`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from soong.shared.core.jsontext import MAX_DEPTH, deeper_than, dump
from soong.shared.tools.limits import storable

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_VALUES: Final = 200_000
"""Commas and openings outside of strings in one text: each costs the event loop up to 5 µs, and takes a byte or two."""
END_BYTES: Final = 4_096
"""How much of a text that is too long is kept of its beginning and of its end, to find the id of its request."""
UNREADABLE: Final = -999_000
"""The code of an error that stands for an answer that cannot be read."""

_OF_THE_SDK: Final = frozenset({-32_000, -32_001, UNREADABLE})
"""The codes by which the SDK and this module name an end of the connection or of the time. A server's are moved."""
_MOVED: Final = -1_000_000
_INTERNAL_ERROR: Final = -32_603
_RAW: Final = "soong/result"
_LISTS: Final = {
    "tools/call": "content",
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "resources/read": "contents",
}
"""The requests whose results are not read by the SDK, with the list that it demands of each."""
_SHOWN_BYTES: Final = 300
MAX_ASKED: Final = 1_000
"""Requests of a server that wait for our answer; more are left out, as each holds memory until the server reads."""
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ID: Final = rb'"id"\s*:\s*(?:"([^"\\]{1,100})"|(\d{1,18}))\s*'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_FIRST: Final = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",")
_ID_LAST: Final = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*$")
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?')
"""Also a string without an end: each byte is read once."""

Message = dict[str, Any]


def raw_result(answer: Any) -> Mapping[str, Any]:
    """Return a tool's answer or a list as its server sent it; ``answer`` is what the SDK made of it."""
    raw = (answer.meta or {}).get(_RAW)
    return raw if isinstance(raw, Mapping) else {}


def native_code(code: int) -> int:
    return code - _MOVED if code - _MOVED in _OF_THE_SDK else code


@dataclass(slots=True)
class Intake:
    """Reads the texts of one connection, or of the answer to one request over HTTP, whose every reply is its own.
    ``waiting`` has the requests without an answer: the id as it was sent, and the method.
    """

    waiting: dict[str, tuple[Any, str]] = field(default_factory=dict)
    is_of_one_request: bool = False
    asked: set[str] = field(default_factory=set)
    """The server's own requests that have no answer yet; over HTTP those of all answers of the connection."""
    _printed: bytearray = field(default_factory=bytearray)
    _depth: int = 0

    def sent(self, message: Message) -> None:
        method, params = message.get("method"), message.get("params")
        if method is None:
            self.asked.discard(str(message.get("id")))
        elif method == "notifications/cancelled" and isinstance(params, Mapping):
            self.waiting.pop(str(params.get("requestId")), None)
        elif isinstance(method, str) and "id" in message:
            if method == "initialize":
                self.waiting.clear()  # earlier requests have failed
            self.waiting[str(message["id"])] = (message["id"], method)

    def line(self, line: bytes) -> list[Message]:
        """Return the messages that a printed line completes; one may be printed over several lines."""
        if not line.strip():
            return []
        is_message = line.startswith(b'{"') and b'"jsonrpc"' in line
        if is_message or len(self._printed) > MAX_LINE_BYTES:
            self._printed.clear()  # the lines before were not a message
        if not self._printed:
            if line.strip(b"{[ \t\r"):
                return self.messages(line)
            self._depth = 0
        self._printed += line + b"\n"
        if _has_too_many_values(line):
            self._printed.clear()
            return self.messages(line)
        bare = _STRING.sub(b"", line)
        self._depth += bare.count(b"[") + bare.count(b"{") - bare.count(b"]") - bare.count(b"}")
        if self._depth > 0:
            return []
        text = bytes(self._printed)
        self._printed.clear()
        return self.messages(text)

    def messages(self, text: bytes) -> list[Message]:
        """Return the messages in a text; a server's other words are none."""
        if _has_too_many_values(text):
            problem = f"answered with more than {MAX_VALUES} values, which are not read"
            return self._failed(self._named_in(text), problem, b"")
        try:
            value = _loaded(text)
        except (ValueError, RecursionError):
            return self._failed(self._named_in(text), "answered what cannot be read", text)
        found = (self._message(one) for one in (value if isinstance(value, list) else [value]))
        return [message for message in found if message is not None]

    def too_long(self, ends: bytes) -> list[Message]:
        """Return the failure of the request whose answer is too long; ``ends`` are its first and last bytes."""
        problem = f"answered with more than {MAX_LINE_BYTES} bytes, which are not read"
        return self._failed(self._named_in(ends), problem, b"")

    def document(self, text: bytes) -> Message | None:
        """Return the reply in the body of an answer over HTTP; one without a reply fails its request."""
        replies = [message for message in self.messages(text) if "method" not in message]
        if not replies:
            replies = self._failed(self._only(), "answered what is not MCP", text)
        return replies[0] if replies else None

    def _message(self, one: object) -> Message | None:
        if not isinstance(one, dict):
            return None
        is_marked, method = "jsonrpc" in one, one.get("method")
        if isinstance(method, str):
            asked, params = one.get("id"), one.get("params")
            if not (is_marked or "/" in method) or not isinstance(asked, str | int | None):
                return None
            if method == "notifications/cancelled" and isinstance(params, dict):
                self.asked.discard(str(params.get("requestId")))
            if asked is not None:
                if str(asked) in self.asked or len(self.asked) >= MAX_ASKED:
                    return None
                self.asked.add(str(asked))
            named = {} if asked is None else {"id": asked}
            given = {"params": params} if isinstance(params, dict) else {}
            return {"jsonrpc": "2.0", **named, "method": method, **given}
        has_reply = "result" in one or "error" in one
        key = self._key(one.get("id")) if has_reply or (is_marked and one.get("id") is not None) else None
        if key is None or not (is_marked or one.get("id") is not None):
            return None
        return self._reply(key, one)

    def _reply(self, key: str, one: Message) -> Message | None:
        error, result = one.get("error"), one.get("result")
        if error is None and not isinstance(result, dict):
            return next(iter(self._failed(key, "answered what is not MCP", dump(one).encode())), None)
        asked, method = self.waiting.pop(key)
        answer = {"error": _error(error)} if error is not None else {"result": _passed(method, result or {})}
        return {"jsonrpc": "2.0", "id": asked, **answer}

    def _key(self, named: object) -> str | None:
        """Return the request that a reply answers: the one that it names, else the only one that waits."""
        if named is None or self.is_of_one_request:
            return self._only()
        key = str(int(named)) if isinstance(named, float) and named.is_integer() else str(named)
        return key if key in self.waiting else None

    def _only(self) -> str | None:
        waiting = [key for key, (_, method) in self.waiting.items() if method != "subscriptions/listen"]
        return waiting[0] if len(waiting) == 1 else None

    def _named_in(self, text: bytes) -> str | None:
        """Return the request that a text answers which is not JSON; None where it may be anything, such as a log."""
        if self.is_of_one_request:
            return self._only()
        if b'"method"' in text[:END_BYTES] or not text.lstrip().startswith((b"{", b"[")):
            return None
        named = _ID_FIRST.match(text) or _ID_LAST.search(text[-END_BYTES:])
        if named is not None:
            return self._key((named[1] or named[2]).decode("utf-8", "replace"))
        return self._only() if b'"jsonrpc"' in text else None

    def _failed(self, key: str | None, problem: str, text: bytes) -> list[Message]:
        if key is None:
            return []
        asked, _ = self.waiting.pop(key)
        shown = text[:_SHOWN_BYTES].decode("utf-8", "replace").strip()
        words = f"{problem}: {shown}" if shown else problem
        return [{"jsonrpc": "2.0", "id": asked, "error": {"code": UNREADABLE, "message": words}}]


def _has_too_many_values(text: bytes) -> bool:
    if _values(text) <= MAX_VALUES:
        return False
    most = 2 * MAX_VALUES  # an object has a string for each key
    bare, strings = _STRING.subn(b"", text, most)
    return strings == most or _values(bare) > MAX_VALUES


def _values(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _loaded(text: bytes) -> Any:
    """Return a JSON value without halves of characters. Raises: ValueError, RecursionError."""
    words = text.decode("utf-8", "replace").lstrip("\ufeff")
    # NaN and Infinity are null, as JavaScript writes them.
    value = json.loads(words, parse_constant=lambda _name: None, parse_float=_finite)
    if deeper_than(value, MAX_DEPTH):
        raise RecursionError
    return json.loads(storable(json.dumps(value, ensure_ascii=False))) if _HALF.search(words) else value


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _passed(method: str, result: Message) -> Message:
    """Return a result that the SDK takes, whatever is in it."""
    if method in ("initialize", "server/discover"):
        return _started(method, result)
    name = _LISTS.get(method)
    if name is None or result.get("resultType") == "input_required":
        return result
    passed = {name: [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {_RAW: result}}
    if method == "tools/list":
        passed["tools"] = list(_with_headers(result.get("tools"), passed))
        passed |= {"nextCursor": cursor} if (cursor := cursor_of(result)) else {}
    return passed


def _started(method: str, result: Message) -> Message:
    """Return the answer of a server that starts; a capability may be true or an empty list."""
    offered, about = result.get("capabilities"), result.get("serverInfo")
    if method == "initialize":
        named = about if isinstance(about, dict) else {}
        shown = {key: str(named.get(key) or "") for key in ("name", "version")}
        result = {**result, "capabilities": offered or {}, "serverInfo": shown}
    if isinstance(offered, dict):
        kept = {name: value if isinstance(value, dict) else {} for name, value in offered.items() if value is not None}
        result = {**result, "capabilities": kept}
    return result


def _with_headers(tools: object, page: Message) -> Iterator[Message]:
    """Yield the tools whose arguments the SDK mirrors in headers: it must have them."""
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and "x-mcp-header" in dump(tool.get("inputSchema")):
            from mcp_types.methods import validate_server_result

            try:
                validate_server_result("tools/list", "2026-07-28", {**page, "tools": [tool]})
            except ValueError:
                continue
            yield tool


def cursor_of(result: Mapping[str, Any]) -> str:
    """Return the cursor of the next page; empty at the end of a list. A number is taken as its text."""
    cursor = result.get("nextCursor")
    return cursor if isinstance(cursor, str) else str(cursor) if cursor and isinstance(cursor, int | float) else ""


def _error(error: object) -> Message:
    """Return a server's error in the form of JSON-RPC; a code that is not a number goes to its words."""
    told = error if isinstance(error, dict) else {"message": error}
    code, words, data = told.get("code"), told.get("message"), told.get("data")
    text = words if isinstance(words, str) else "" if words is None else dump(words)
    text = text.strip() or ("the server reports an error without words" if data is None else dump(data))
    try:
        number = int(code) if isinstance(code, int | float | str) else None
    except (ValueError, OverflowError):
        number = None
    if number is None and code is not None:
        text = f"{code}: {text}"
    number = _INTERNAL_ERROR if number is None else number + _MOVED if number in _OF_THE_SDK else number
    return {"code": number, "message": text, **({} if data is None else {"data": data})}
