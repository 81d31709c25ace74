"""A heartbeat gets through beside writers that never rest."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soong.shared.engine.tasks.step import Claim
from tests.integration.sql_stores import begin, claim_one, opened
from tests.integration.test_sql_crash import WRITER


@pytest.mark.spec("DAG-03")
async def test_heartbeat_is_not_kept_waiting_by_busy_writers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        session, worker_id = await begin(store)
        claims = [await claim_one(store, session, worker_id) for _ in range(2)]
        writers = [_busy_writer(url, claim) for claim in claims]
        heart = store.heartbeat_writer()
        try:
            took = [await asyncio.to_thread(_timed, heart.beat, worker_id) for _ in range(30)]
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        heart.close()

        # Far under the lease; without the side lock one beat was seen to wait 3.5 s.
        assert max(took) < 1.0
        assert [worker.beat for worker in await store.sessions.workers()] == [30]


def _busy_writer(url: str, claim: Claim) -> "subprocess.Popen[bytes]":
    """Start a process that does nothing but append."""
    arguments = [url, claim.identity.run_id, str(claim.fence)]
    return subprocess.Popen([sys.executable, "-P", "-c", WRITER, *arguments], stdout=subprocess.DEVNULL)


def _timed(beat: object, worker_id: str) -> float:
    start = time.monotonic()
    assert callable(beat)
    assert beat(worker_id)
    return time.monotonic() - start
