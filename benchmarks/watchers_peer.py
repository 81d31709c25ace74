"""People who watch one task, as their browsers do it: a stream of it and a poll of the inbox each, in one process.

``python -m benchmarks.watchers_peer PORT TASK`` reads a token a line from standard input, one for each, and says that
it is ready. The first asks until the task is there; then all connect at once. When the task has ended for all of them,
what they saw is written as one JSON line.
"""

import asyncio
import json
import sys
import time
from typing import Final

EVENT: Final = b"\nevent: change\n"
TRIES: Final = 100
PAUSE_S: Final = 0.1
POLL: Final = "/v1/approvals?state=pending&limit=200&wait=50"


async def watch(port: int, task: str, token: str) -> tuple[int, int]:
    """Follow a task to its end; return the bytes and the changes that came."""
    reader, writer = await _asked(port, f"/v1/tasks/{task}/stream", token)
    status = (await reader.readline()).split()[1]
    if status != b"200":
        raise SystemExit(f"a watcher was answered {status.decode()}")
    size = changes = 0
    rest = b""
    while data := await reader.read(65536):
        size += len(data)
        changes += (rest + data).count(EVENT)
        rest = data[-len(EVENT) + 1 :]
    writer.close()
    return size, changes


async def until_there(port: int, task: str, token: str) -> None:
    """Ask for a task until it has been handed over."""
    for _ in range(TRIES):
        reader, writer = await _asked(port, f"/v1/tasks/{task}/stream", token)
        status = (await reader.readline()).split()[1]
        writer.close()
        if status == b"200":
            return
        await asyncio.sleep(PAUSE_S)
    raise SystemExit(f"there is no task {task}")


async def poll(port: int, token: str) -> None:
    """Keep a poll of the inbox open, as the console does, until cancelled."""
    while True:
        reader, writer = await _asked(port, POLL, token)
        await reader.read()
        writer.close()


async def _asked(port: int, path: str, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    return reader, writer


async def main(port: int, task: str, tokens: list[str]) -> None:
    print("ready", flush=True)
    await until_there(port, task, tokens[0])
    watching = [asyncio.create_task(watch(port, task, token)) for token in tokens]
    polling = [asyncio.create_task(poll(port, token)) for token in tokens]
    seen = await asyncio.gather(*watching)
    for one in polling:
        one.cancel()
    told = {"bytes": sum(size for size, _ in seen), "changes": min(count for _, count in seen)}
    print(json.dumps({**told, "cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.stdin.read().split()))
