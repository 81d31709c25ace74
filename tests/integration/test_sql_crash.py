"""A process killed in the middle of writing leaves a whole database, with everything in it that was told as done."""

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soong.shared.storage.sql.store import open_store
from tests.integration.sql_stores import begin, claim_one

WRITER = """
import asyncio, sys
from soong.shared.storage.sql.store import open_store
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind

async def main(url, run_id, fence):
    store = await open_store(url, migrate=False)
    number = 0
    while True:
        node = NewNode(NodeKind.ASSISTANT, {"v": 1, "text": "x" * 5000})
        events = [NewEvent("turn", {"n": number}), NewEvent("turn_end", {"n": number})]
        appended = await store.runs.append(run_id, fence, nodes=[node], events=events, now_us=1)
        print(appended.last_seq, flush=True)
        number += 1

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.spec("DAG-07")
async def test_kill_in_the_middle_of_writing_loses_nothing_reported_and_breaks_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    store = await open_store(url, migrate=True)
    session, worker_id = await begin(store)
    claim = await claim_one(store, session, worker_id)
    run_id = claim.identity.run_id
    told = 0

    for delay_s in (0.05, 0.11, 0.23):
        told = max(told, _write_and_kill([url, run_id, str(claim.fence)], delay_s))

        run, events = await store.runs.run(run_id), await store.runs.events(run_id, limit=100_000)
        assert run.last_seq >= told
        assert [event.seq for event in events] == list(range(1, run.last_seq + 1))
        assert len(await store.runs.nodes(run_id)) == run.last_node
        assert sum(event.type == "turn" for event in events) == sum(event.type == "turn_end" for event in events)
    await store.close()
    with sqlite3.connect(tmp_path / "soong.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def _write_and_kill(arguments: list[str], delay_s: float) -> int:
    """Let a process write until it is killed ``delay_s`` after its first word; return the last number it told."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:  # not waited for: the kill must fall at no particular moment
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = [line for line in process.stdout.read().splitlines() if line.isdigit()]
    return int(rest[-1] if rest else first)
