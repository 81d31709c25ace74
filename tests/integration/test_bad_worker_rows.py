"""A worker's process that has turned bad: the questions, the sizes and the taint of the rows that it writes."""

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import fields, replace

from soong.orchestrator.approvals.approval import approval_of
from soong.orchestrator.approvals.decide import TargetChecker
from soong.orchestrator.schemas.approval import ApprovalDetail
from soong.orchestrator.terminal.question_text import list_text, show_text
from soong.shared.engine.runs.budgets import DAY, Budget
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.permissions.request import Choice, PermissionRequest
from soong.shared.permissions.signing import prove
from soong.shared.storage.sql.engine.rows import request_body
from soong.shared.tools.result import ErrorType
from tests.contract.scene import completed
from tests.integration.bad_deployment import CALL, DENIED, INSERT_REQUEST, NODE, NOTHING, Deployment, claim_one
from tests.integration.consent import documents_of, make_call, verdicts
from tests.integration.roles import ORCHESTRATOR, plain
from tests.model.builders import make_step, make_task, open_worker, take_turn
from tests.waiting import until

AT_ONCE = 12
"""Fewer than a run may have open: what is beyond that is closed unseen."""
TEXTS = ("", "x" * 100_000, "\x1b]52;c;eA==\x07\u202e\n1) yes", "../..\0", "\ufdd0", "-1", "[]")
LISTS = ((), ("",), ("x" * 100_000,), ("\x1b[31m", "network"), tuple(str(number) for number in range(5000)))
NUMBERS = (0, -(2**53), 2**53)
OBJECTS: tuple[dict[str, Any], ...] = (
    {},
    {"": {}},
    {"…": "… (5 more)", "path": []},
    {"path": "x" * 100_000},
    {"a": [[[[[{}]]]]]},
    {"a": 1e308},
)


def values_of(name: str, now: object) -> tuple[object, ...]:
    """Return the hostile values of a field, of the kind that it has."""
    if name == "unknown_effects":
        return tuple((each,) for each in OBJECTS)
    if isinstance(now, bool):
        return (not now,)
    if isinstance(now, Choice):
        return tuple(Choice)
    kinds: dict[type, tuple[object, ...]] = {str: TEXTS, tuple: LISTS, int: NUMBERS, dict: OBJECTS}
    return kinds[type(now)]


def hostile(deployment: Deployment) -> list[PermissionRequest]:
    """Return a question for each hostile value of each field, each proven with the run's token."""
    found: list[PermissionRequest] = []
    for each in fields(PermissionRequest):
        if each.name in ("id", "identity", "tool_call_id", "proof"):
            continue
        for value in values_of(each.name, getattr(deployment.own_request(), each.name)):
            bare = deployment.own_request(f"call_{len(found)}", **{each.name: value})
            found.append(replace(bare, proof=prove(deployment.own.token, bare)))
    return found


@pytest.mark.spec("OPS-12.d", "CARD-3")
async def test_a_proven_question_with_hostile_values_holds_nobody_back_and_can_be_shown(
    deployment: Deployment, tmp_path: Path
) -> None:
    bench, questions = deployment.bench, hostile(deployment)
    bench.callback.answer()
    for start in range(0, len(questions), AT_ONCE):
        for request in questions[start : start + AT_ONCE]:
            values = {
                "call": request.tool_call_id,
                "body": request_body(request),
                "run": deployment.own.identity.run_id,
            }
            told = await deployment.try_(INSERT_REQUEST, id=request.id, **values)
            assert told == {"rows": 1}, request
        async with asyncio.timeout(120):
            while await bench.store.consent.pending(bench.session_id):
                await bench.settle()

    gate = bench.gate(deployment.victim, deployment.victim_worker)
    async with asyncio.timeout(60):
        (verdict,) = await verdicts(gate.decide(make_call(deployment.victim)))
    listed = await bench.store.consent.questions(session_id=bench.session_id, include_closed=True, limit=1000)
    shown = 0
    for question in listed:
        if question.request.identity == deployment.own.identity:
            approval = await approval_of(bench.store, question, TargetChecker((), tmp_path))
            document = ApprovalDetail.of_question(approval.question, approval).model_dump()
            json.dumps(document)
            assert "\x1b" not in show_text(document, bench.clock.now_us(), is_full=True)
            shown += 1

    assert verdict.is_allowed
    assert shown > len(questions) // 2
    assert "\x1b" not in list_text(documents_of(listed), bench.clock.now_us())


@pytest.mark.spec("PER-14", "OPS-12.d")
async def test_a_question_whose_answer_cannot_be_stored_is_shown_once_and_ends_by_time(deployment: Deployment) -> None:
    bench = deployment.bench
    bench.callback.answer()
    with psycopg.connect(plain(deployment.urls.owner), autocommit=True) as owner:
        owner.execute(f"REVOKE INSERT ON answers FROM {ORCHESTRATOR}".encode())
        try:
            gate = bench.gate(deployment.victim, deployment.victim_worker)
            asking = asyncio.ensure_future(gate.decide(make_call(deployment.victim)))
            await until(lambda: bool(bench.callback.shown) and not bench.callback.at_once)
            await bench.settle()
            await bench.pass_time(bench.settings.permission_timeout_s)
            (verdict,) = await verdicts(asking)
        finally:
            owner.execute(f"GRANT INSERT ON answers TO {ORCHESTRATOR}".encode())

    assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_TIMEOUT)
    assert len(bench.callback.shown) == 1


@pytest.mark.spec("OPS-12.d", "PER-13")
async def test_an_answer_whose_metadata_is_malformed_answers_nothing_and_holds_nobody_back(
    deployment: Deployment,
) -> None:
    """Workers write no answers; a row that somebody else wrote like this is refused as no person's."""
    bench, request = deployment.bench, deployment.own_request()
    await deployment.raise_own(request)
    with psycopg.connect(plain(deployment.urls.admin), autocommit=True) as admin:
        admin.execute(
            b"INSERT INTO answers (request_id, choice, principal, channel, input_digest, answered_us, metadata)"
            b" VALUES (%s, 'allow_once', 'local', 'cli', %s, 1, '{')",
            (request.id, request.input_digest),
        )
    bench.callback.answer()

    gate = bench.gate(deployment.victim, deployment.victim_worker)
    async with asyncio.timeout(60):
        (verdict,) = await verdicts(gate.decide(make_call(deployment.victim)))
        while await bench.store.consent.pending(bench.session_id):
            await bench.settle()

    assert verdict.is_allowed
    decision = await bench.store.consent.decision_of(request.id)
    assert decision is not None
    assert (decision.choice, decision.error) == (Choice.DENY, ErrorType.PERMISSION_FAILED)


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


async def peak_of(read: Callable[[], Awaitable[object]]) -> int:
    """Return how many bytes a read takes at most."""
    await read()
    tracemalloc.start()
    try:
        await read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("column", ["pools", "capabilities"])
async def test_a_worker_with_a_large_list_is_refused(deployment: Deployment, column: str) -> None:
    values = {"pools": '["default"]', "capabilities": "[]", column: LARGE}

    assert await deployment.try_(WORKER, count=1, **values) == DENIED
    assert await deployment.try_(WORKER, count=1, pools='["default"]', capabilities='["gpu"]') == {"rows": 1}


@pytest.mark.spec("OPS-12.d")
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


@pytest.mark.spec("OPS-12.d")
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


@pytest.mark.spec("OPS-12.d")
async def test_a_follower_of_all_logs_takes_large_events_in_parts(deployment: Deployment) -> None:
    store, own, run_id = deployment.own_store, deployment.own, deployment.own.identity.run_id
    for _ in range(12):
        await store.runs.append(
            run_id, own.fence, events=[NewEvent("tool_completed", {"text": "x" * 3 * MB})], now_us=1
        )

    parts = await deployment.bench.store.feed.read("telemetry", since_us=0, limit=1000)

    sizes = [len(str(event.data)) for part in parts for event in part.events]
    assert 0 < sum(sizes) < 13 * MB


@pytest.mark.spec("OPS-12.d")
async def test_a_charge_for_a_day_that_has_not_come_is_refused(deployment: Deployment) -> None:
    store, today = deployment.bench.store, datetime.now(UTC).date()
    later = str(today + timedelta(days=200))
    await store.budgets.set_budget(DAY, Budget(tokens=1000))

    refused = [await deployment.try_(CHARGE, day=day) for day in (later, str(today + timedelta(days=2)), "x")]
    taken = await deployment.try_(CHARGE, day=str(today))

    assert refused == [DENIED] * 3
    assert taken == {"rows": 1}
    assert (await store.budgets.budgets([DAY], day=later))[DAY].used.tokens == 0


TAINT = "UPDATE runs SET tainted_us = 1 WHERE id = %(run)s"


CLEARED = {
    "clear it": "UPDATE runs SET tainted_us = NULL WHERE id = %(own)s",
    "clear all": "UPDATE runs SET tainted_us = NULL",
    "say that it was earlier": "UPDATE runs SET tainted_us = 1 WHERE id = %(own)s",
    "clear it and let the run go": (
        "UPDATE runs SET tainted_us = NULL, status = 'queued', worker_id = '' WHERE id = %(own)s"
    ),
    "clear it and end the run": (
        "UPDATE runs SET tainted_us = NULL, status = 'completed', end_reason = 'completed', ended_us = 1"
        " WHERE id = %(own)s"
    ),
    "delete the run": "DELETE FROM runs WHERE id = %(own)s",
}


@pytest.mark.spec("PER-21", "OPS-12.c")
async def test_a_taint_that_it_wrote_it_takes_back_by_no_statement(deployment: Deployment) -> None:
    bench, own = deployment.bench, deployment.own
    run_id = own.identity.run_id
    for call in ("call_1", "call_2"):
        await deployment.own_store.runs.end_call(
            *(run_id, own.fence, call),
            result=None,
            nodes=(),
            events=(NewEvent("tool_completed"),),
            now_us=bench.clock.now_us(),
            taints=True,
        )

    outcomes = {what: await deployment.try_(statement) for what, statement in CLEARED.items()}

    assert outcomes == dict.fromkeys(CLEARED, DENIED)
    assert await bench.store.runs.is_tainted(run_id)
    assert (await bench.store.runs.run(run_id)).is_tainted


@pytest.mark.spec("PER-21.b", "OPS-12.c")
async def test_what_it_feeds_stays_tainted_once_it_has_let_its_run_go(deployment: Deployment) -> None:
    bench = deployment.bench
    source = make_step("source", kind=StepKind.AGENT)
    await bench.store.tasks.create_task(
        make_task(bench.session_id, source, make_step("after", depends_on=("source",), kind=StepKind.AGENT))
    )
    own = await claim_one(deployment.own_store, deployment.own_worker, bench)
    await deployment.own_store.runs.end_call(
        *(own.identity.run_id, own.fence, "call_1"), result=None, nodes=(), events=(), now_us=1, taints=True
    )
    await take_turn(deployment.own_store, deployment.own_worker, [completed(own)], claim=0, now_us=1)

    outcome = await deployment.try_("UPDATE runs SET tainted_us = NULL WHERE id = %(run)s", run=own.identity.run_id)
    after = await claim_one(bench.store, await open_worker(bench.store), bench)

    assert outcome == NOTHING
    assert after.identity.step_key.endswith("/after")
    assert await bench.store.runs.is_tainted(after.identity.run_id)


async def others_runs(deployment: Deployment) -> dict[str, str]:
    """Return runs that the bad worker does not hold, by what each is."""
    task = make_task(deployment.bench.session_id, "free")
    await deployment.bench.store.tasks.create_task(task)
    free = task.steps[0].run
    assert free is not None
    return {
        "held by another": deployment.victim.identity.run_id,
        "ended": deployment.finished,
        "queued": free.identity.run_id,
        "the session's own": task.root_run.identity.run_id,
    }


WRITTEN = {
    "event": "INSERT INTO events (run_id, seq, type, time_us, data)"
    " SELECT id, last_seq + 1, 'tool_completed', 1, '{}' FROM runs WHERE id = %(run)s",
    "node": f"{NODE} SELECT id, last_node + 1, 0, 'assistant', '{{}}', 1 FROM runs WHERE id = %(run)s",
    "lines": "INSERT INTO log_lines (run_id, place, number, lines)"
    """ SELECT id, 0, 1, '[[1,"stdout","","forged"]]' FROM runs WHERE id = %(run)s""",
    "call": f"{CALL} SELECT id, 'c', 9, 't', 'e', 1, '', '{{}}', '{{}}', '', 'started' FROM runs WHERE id = %(run)s",
}


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.spec(f"OPS-12.c/{row}")) for row in ("event", "node", "call", "lines")]
)
async def test_it_writes_nothing_of_a_run_that_it_does_not_hold(deployment: Deployment, row: str) -> None:
    others = await others_runs(deployment)
    store = deployment.bench.store.runs

    async def rows() -> list[list[object]]:
        return [
            [*await store.events(run), *await store.nodes(run), *await store.calls(run), *await store.lines(run)]
            for run in others.values()
        ]

    before = await rows()

    outcomes = {which: await deployment.try_(WRITTEN[row], run=run) for which, run in others.items()}

    assert outcomes == dict.fromkeys(others, DENIED)
    assert await rows() == before


@pytest.mark.spec("OPS-12.c/taint")
async def test_it_taints_no_run_that_it_does_not_hold(deployment: Deployment) -> None:
    others = await others_runs(deployment)

    outcomes = {which: await deployment.try_(TAINT, run=run) for which, run in others.items()}

    assert outcomes == {"held by another": NOTHING, "ended": NOTHING, "queued": DENIED, "the session's own": DENIED}
    assert [await deployment.bench.store.runs.is_tainted(run) for run in others.values()] == [False] * len(others)
