"""A worker's process that has turned bad, and how much of a reader's memory and of a budget its rows take."""

import json
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from soong.shared.engine.runs.budgets import DAY, Budget
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from tests.contract.scene import completed
from tests.integration.bad_deployment import DENIED, Deployment
from tests.integration.roles import plain
from tests.model.builders import take_turn

MB = 1_000_000
WORKER = (
    "INSERT INTO workers (id, node_name, host, pid, slots, pools, capabilities, started_us, protocol, state, beat,"
    " credential) SELECT 'wrk_bad' || n, 'n', 'h', 1, 1, %(pools)s, %(capabilities)s, 1, 1, 'live', 1, credential"
    " FROM workers, generate_series(1, %(count)s) AS n WHERE id = %(own_worker)s"
)
CHARGE = (
    "INSERT INTO charges (run_id, fence, number, session_id, day, tokens, microusd, is_open, turns)"
    " SELECT id, fence, 900, session_id, %(day)s, 9007199254740991, 1, 1, 1 FROM runs WHERE id = %(own)s"
)
LARGE = json.dumps(["x" * 900 for _ in range(1000)])
"""What compresses to a few kilobytes."""

pytestmark = pytest.mark.spec("OPS-12.d")


async def peak_of(read: Callable[[], Awaitable[object]]) -> int:
    """Return how many bytes a read takes at most."""
    await read()
    tracemalloc.start()
    try:
        await read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("column", ["pools", "capabilities"])
async def test_a_worker_with_a_large_list_is_refused(deployment: Deployment, column: str) -> None:
    values = {"pools": '["default"]', "capabilities": "[]", column: LARGE}

    assert await deployment.try_(WORKER, count=1, **values) == DENIED
    assert await deployment.try_(WORKER, count=1, pools='["default"]', capabilities='["gpu"]') == {"rows": 1}


async def test_large_lists_past_the_row_checks_are_not_loaded_and_their_workers_are_ended(
    deployment: Deployment,
) -> None:
    store = deployment.bench.store
    with psycopg.connect(plain(deployment.urls.admin), autocommit=True) as admin:
        values = {**deployment.names, "count": 50, "pools": LARGE, "capabilities": LARGE}
        assert admin.execute(WORKER.encode(), values).rowcount == 50

    read = await peak_of(lambda: store.sessions.workers(include_gone=True))
    ended = await store.claims.expire_bad_workers(max_lost_leases=3, now_us=1)

    assert read < 5 * MB
    assert len(ended) == 50


async def test_a_page_of_events_or_nodes_ends_by_its_size_and_all_pages_have_all(deployment: Deployment) -> None:
    store, own, run_id = deployment.own_store, deployment.own, deployment.own.identity.run_id
    for _ in range(12):
        events = [NewEvent("tool_completed", {"text": "x" * 3 * MB})]
        nodes = [NewNode(NodeKind.USER, {"v": 1, "text": "y" * 3 * MB})]
        await store.runs.append(run_id, own.fence, events=events, nodes=nodes, now_us=1)
    await take_turn(store, deployment.own_worker, [completed(own)], claim=0, now_us=2)
    reader = deployment.bench.store.runs

    numbers, seqs, peaks = [0], [0], []
    while page := await reader.node_page(run_id, after=numbers[-1], limit=1000):
        numbers += [node.number for node in page]
        peaks.append(sum(len(str(node.payload)) for node in page))
    while log := await reader.events(run_id, after_seq=seqs[-1], limit=1000):
        seqs += [event.seq for event in log]
        peaks.append(sum(len(str(event.data)) for event in log))

    assert max(peaks) < 13 * MB
    assert numbers == list(range(14))
    assert seqs == list(range((await reader.run(run_id)).last_seq + 1))


async def test_a_follower_of_all_logs_takes_large_events_in_parts(deployment: Deployment) -> None:
    store, own, run_id = deployment.own_store, deployment.own, deployment.own.identity.run_id
    for _ in range(12):
        await store.runs.append(
            run_id, own.fence, events=[NewEvent("tool_completed", {"text": "x" * 3 * MB})], now_us=1
        )

    parts = await deployment.bench.store.feed.read("telemetry", since_us=0, limit=1000)

    sizes = [len(str(event.data)) for part in parts for event in part.events]
    assert 0 < sum(sizes) < 13 * MB


async def test_a_charge_for_a_day_that_has_not_come_is_refused(deployment: Deployment) -> None:
    store, today = deployment.bench.store, datetime.now(UTC).date()
    later = str(today + timedelta(days=200))
    await store.budgets.set_budget(DAY, Budget(tokens=1000))

    refused = [await deployment.try_(CHARGE, day=day) for day in (later, str(today + timedelta(days=2)), "x")]
    taken = await deployment.try_(CHARGE, day=str(today))

    assert refused == [DENIED] * 3
    assert taken == {"rows": 1}
    assert (await store.budgets.budgets([DAY], day=later))[DAY].used.tokens == 0
