"""An MCP server for tests that means harm, as a program over stdio: ``do`` does what its ``mode`` says."""

import json
import sys
from typing import Any

DO = {"name": "do", "inputSchema": {"type": "object", "properties": {"mode": {"type": "string"}}}}
REQUESTS = 6_000
lists = answers = 0
is_chased = False


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def changed() -> None:
    send(method="notifications/tools/list_changed")


def do(mode: str) -> None:
    global is_chased  # noqa: PLW0603
    if mode == "quotes":  # a message over several lines, with a string that never ends
        write("{")
        write('"' + '\\"' * 30_000)
        write("}")
    elif mode == "ask":
        for number in range(REQUESTS):
            send(id=f"r{number}", method="roots/list")
    elif mode == "ask again":
        for _ in range(REQUESTS):
            send(id="one", method="roots/list")
    elif mode.startswith("values "):
        empty: list[Any] = []
        send(id=call_id, result={"content": [], "structuredContent": {"v": [empty] * int(mode.split()[1])}})
    elif mode == "chase":
        is_chased = True
        changed()


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        call_id, method, params = asked.get("id"), asked.get("method"), asked.get("params") or {}
        if method is None:
            answers += 1
        elif method == "initialize":
            offers = {"tools": {"listChanged": True}}
            about = {"name": "hostile", "version": "1"}
            send(id=call_id, result={"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": about})
        elif method == "tools/list":
            lists += 1
            send(id=call_id, result={"tools": [{**DO, "description": f"list {lists}" if is_chased else ""}]})
            if is_chased:
                changed()
        elif method == "tools/call":
            do(params["arguments"]["mode"])
            counts = {"lists": lists, "answers": answers}
            send(id=call_id, result={"content": [], "structuredContent": counts})
        elif call_id is not None:
            send(id=call_id, error={"code": -32601, "message": "no such method"})
