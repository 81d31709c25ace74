"""An MCP server for tests that is written by hand, and answers as careless servers do: ``odd_server.py [PAGES.json]``.

``say`` prints the given texts in place of its answer; ``ID`` in them is the id of the request. ``slow`` answers when
``release`` is called. PAGES.json has the pages of ``tools/list`` beside these three, by cursor.
"""

import json
import sys
from pathlib import Path
from typing import Any

TEXTS = {"type": "object", "properties": {"texts": {"type": "array", "items": {"type": "string"}}}}
TOOLS = [
    {"name": "say", "inputSchema": TEXTS},
    *({"name": n, "inputSchema": {"type": "object"}} for n in ("slow", "release")),
]
PAGES = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else {}
slow: list[Any] = []
calls = 0


def write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("latin-1") + b"\n")
    sys.stdout.buffer.flush()


def reply(id: Any, result: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def call(id: Any, name: str, given: dict[str, Any]) -> None:
    global calls  # noqa: PLW0603
    calls += 1
    if name == "slow":
        slow.append(id)
    elif name == "release":
        reply(slow.pop(), text("slow and sure"))
        reply(id, text(f"call {calls}"))
    else:
        for said in given["texts"]:
            write(said.replace("BIG", "x" * (20 << 20)).replace("ID", json.dumps(id)))


for line in sys.stdin:
    asked = json.loads(line)
    call_id, method, params = asked.get("id"), asked["method"], asked.get("params") or {}
    if method == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": [], "resources": True}, "serverInfo": {}}
        reply(call_id, about)
    elif method == "tools/list":
        page = PAGES.get(str(params.get("cursor", "")), {"tools": []})
        reply(call_id, {**page, "tools": TOOLS + page["tools"]} if not params.get("cursor") else page)
    elif method == "tools/call":
        call(call_id, params["name"], params.get("arguments") or {})
    elif method == "resources/list":
        reply(call_id, {"resources": [{"uri": "a://1", "name": "one"}, {"name": "without"}, None], "nextCursor": 7})
    elif method == "resources/read":
        reply(call_id, {"contents": [{"uri": "a://1", "text": "good"}, {"uri": "a://1"}, None]})
    elif call_id is not None:
        write(json.dumps({"jsonrpc": "2.0", "id": call_id, "error": {"code": -32601, "message": "no such method"}}))
