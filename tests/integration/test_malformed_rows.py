"""Rows that no program of ours writes: the database takes few of them from a worker, and none stops anybody (OPS-12).

A process with a worker's role tries what that role may. What the database refuses is written past it, by the server's
superuser, for what readers hold by themselves.
"""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from soong.orchestrator.owner.workers import Reaper
from soong.orchestrator.schemas.run import RunSchema
from soong.orchestrator.schemas.task import StepSchema
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.record import Usage, UsageBy
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.storage.sql.store import open_store
from tests.contract.databases import empty_postgres
from tests.contract.scene import completed
from tests.integration.bad_deployment import DENIED, NODE, Deployment
from tests.integration.roles import ORCHESTRATOR, RoleUrls, plain
from tests.model.builders import make_step, make_task, make_worker, open_worker, take_turn
from tests.one_loop import OneLoop
from tests.waiting import until

NOT_JSON = {"refused": "InvalidTextRepresentation"}
OUT_OF_RANGE = {"refused": "CheckViolation"}
WORKER = "INSERT INTO workers (id, node_name, host, pools, capabilities, state, credential)"
REPORT = "INSERT INTO reports (run_id, type, data, time_us)"
EVENT = "INSERT INTO events (run_id, seq, type, time_us, data)"
NEXT_EVENT = "FROM runs WHERE id = %(own)s"
OWN_CREDENTIAL = "(SELECT credential FROM workers WHERE id = %(own_worker)s)"


def past_the_database(deployment: Deployment, statement: str, **values: object) -> None:
    """Write as the server's superuser, whom no row check stops."""
    with psycopg.connect(plain(deployment.urls.admin), autocommit=True) as admin:
        assert admin.execute(statement.encode(), {**deployment.names, **values}).rowcount == 1


def reaper(deployment: Deployment) -> Reaper:
    bench = deployment.bench
    lease = timedelta(seconds=15)
    return Reaper(
        bench.store.sessions,
        bench.store.claims,
        bench.clock,
        lease,
        max_lost_leases=3,
        owner_id=bench.ownership.owner_id,
    )


async def told(deployment: Deployment, what: str = "malformed_row") -> list[dict[str, Any]]:
    entries = await deployment.bench.store.audit.audit_entries(kinds=[AuditKind.SECURITY])
    return [dict(entry.data) for entry in entries if entry.data["what"] == what]


async def a_neighbour_works(deployment: Deployment) -> bool:
    """Say whether another session's step is claimed and completed by an honest worker."""
    store = deployment.bench.store
    task = make_task(deployment.bench.session_id, make_step("neighbour"))
    await store.tasks.create_task(task)
    worker = await open_worker(store)
    claims: dict[str, Claim] = {}
    for _ in range(5):
        advance = await take_turn(store, worker, claim=10, now_us=1)
        claims |= {claim.step_key: claim for claim in advance.claims}
    ends = [completed(claim) for claim in claims.values()]
    await take_turn(store, worker, ends, claim=0, now_us=1)
    return (await store.tasks.step(f"{task.id}/neighbour")).status is StepStatus.COMPLETED


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a worker whose pools are not JSON": (
        f"{WORKER} VALUES ('wrk_x', 'n', 'h', 'not json', '[]', 'live', {OWN_CREDENTIAL})",
        NOT_JSON,
    ),
    "a worker whose capabilities are no list": (
        f"{WORKER} VALUES ('wrk_x', 'n', 'h', '[]', '{{}}', 'live', {OWN_CREDENTIAL})",
        DENIED,
    ),
    "a worker without a name, which would hold what nobody holds": (
        f"{WORKER} VALUES ('', 'n', 'h', '[]', '[]', 'live', {OWN_CREDENTIAL})",
        OUT_OF_RANGE,
    ),
    "a report that is not JSON": (f"{REPORT} VALUES (%(own)s, 'x', '{{', 1)", NOT_JSON),
    "a report that nobody could load": (
        f"{REPORT} VALUES (%(own)s, 'x', '{{\"a\": \"' || repeat('x', 2000000) || '\"}}', 1)",
        DENIED,
    ),
    "a usage that is a word": ("UPDATE runs SET usage = '\"x\"' WHERE id = %(own)s", DENIED),
    "a usage that is not JSON": ("UPDATE runs SET usage = 'x' WHERE id = %(own)s", NOT_JSON),
    "an output that is not JSON": ("UPDATE steps SET output = 'x' WHERE key = %(own_step)s", NOT_JSON),
    "an error that is no object": ("UPDATE steps SET error = '[]' WHERE key = %(own_step)s", DENIED),
    "an event that is no object": (f"{EVENT} SELECT id, last_seq + 1, 'x', 1, '[]' {NEXT_EVENT}", DENIED),
    "a node that is no object": (
        "INSERT INTO nodes (run_id, number, parent, kind, payload, created_us) VALUES (%(own)s, 1, 0, 'user', '5', 1)",
        DENIED,
    ),
    "a node of an unknown kind": (
        "INSERT INTO nodes (run_id, number, parent, kind, payload, created_us) VALUES (%(own)s, 1, 0, 'x', '{}', 1)",
        OUT_OF_RANGE,
    ),
    "a turn beyond all": ("UPDATE sessions SET last_claimed = 9223372036854775807", DENIED),
    "a turn far beyond the others'": ("UPDATE sessions SET last_claimed = last_claimed + 100000000", DENIED),
    "as many starts as there can be": ("UPDATE steps SET starts = 9007199254740991 WHERE key = %(own_step)s", DENIED),
    "a place before all others'": ("UPDATE steps SET is_unparked = 9 WHERE key = %(own_step)s", DENIED),
    "a start after the year 9999": ("UPDATE runs SET started_us = 9223372036854775807 WHERE id = %(own)s", DENIED),
}


@pytest.mark.spec("OPS-12.d")
async def test_the_database_takes_no_malformed_row_of_a_worker(deployment: Deployment) -> None:
    outcomes = {what: await deployment.try_(statement) for what, (statement, _) in REFUSED.items()}

    assert outcomes == {what: expected for what, (_, expected) in REFUSED.items()}
    assert await a_neighbour_works(deployment)


# -- workers
@pytest.mark.spec("OPS-12.d")
async def test_a_malformed_worker_is_passed_over_and_ends_as_a_dead_one_does(deployment: Deployment) -> None:
    past_the_database(deployment, "UPDATE workers SET pools = 'not json' WHERE id = %(own_worker)s")
    store = deployment.bench.store

    listed = {worker.id for worker in await store.sessions.workers()}
    concerned = await reaper(deployment).sweep()

    assert deployment.own_worker not in listed
    assert deployment.victim_worker in listed
    assert concerned == {deployment.bench.session_id}
    step = await store.tasks.step(deployment.own.step_key)
    assert (step.status, step.lost_leases, step.fence) == (StepStatus.READY, 1, deployment.own.fence + 1)
    (entry,) = await told(deployment)
    assert (entry["row"], entry["worker"], entry["freed"]) == ("worker", deployment.own_worker, 1)
    assert "pools is not JSON" in entry["reason"]
    assert await reaper(deployment).sweep() == frozenset()
    assert len(await told(deployment)) == 1


@pytest.mark.spec("OPS-12.d", "DAG-05")
async def test_what_a_worker_holds_that_calls_itself_gone_is_freed(deployment: Deployment) -> None:
    left = await deployment.try_("UPDATE workers SET state = 'gone' WHERE id = %(own_worker)s")

    concerned = await reaper(deployment).sweep()

    assert left == {"rows": 1}
    assert concerned == {deployment.bench.session_id}
    step = await deployment.bench.store.tasks.step(deployment.own.step_key)
    assert (step.status, step.lost_leases) == (StepStatus.READY, 1)
    assert [entry["worker"] for entry in await told(deployment)] == [deployment.own_worker]


# -- reports
UNREADABLE = ('{"a": 1e999}', '{"a": 12345678901234567890}', '{"a": "\\ud800"}', '{"a": 1, "a": 2}', "[" * 3000)


@pytest.mark.spec("OPS-12.d")
async def test_a_malformed_report_is_reported_as_such_and_the_next_one_is_taken(deployment: Deployment) -> None:
    store = deployment.bench.store
    accepted = [
        await deployment.try_(f"{REPORT} VALUES (%(own)s, 'x', %(data)s, 1)", data=data) for data in UNREADABLE[:4]
    ]
    past_the_database(deployment, f"{REPORT} VALUES (%(own)s, 'x', '{{', 1)")
    past_the_database(deployment, f"{REPORT} VALUES (%(own)s, 'x', %(data)s, 1)", data=UNREADABLE[4])
    claim = deployment.victim
    event = NewEvent(EventType.SECURITY, {"what": "forged_decision"})
    await store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=1)

    taken = await store.audit.take_reports(deployment.bench.ownership.owner_id, now_us=1)
    again = await store.audit.take_reports(deployment.bench.ownership.owner_id, now_us=1)

    assert accepted == [{"rows": 1}] * 4
    assert (taken, again) == (7, 0)
    malformed = await told(deployment)
    assert [entry["run"] for entry in malformed] == [deployment.own.identity.run_id] * 6
    assert [entry["run"] for entry in await told(deployment, "forged_decision")] == [claim.identity.run_id]


# -- runs and steps
USAGES = (
    "x",
    "[]",
    '{"requests": "many"}',
    '{"requests": 1e999}',
    '{"requests": -1}',
    '{"cost_usd": "NaN"}',
    '{"cost_usd": "1E+999999"}',
    '{"requests":1,"input_tokens":1,"output_tokens":1,"tool_calls":0,"cached_tokens":0,"cost_usd":"1E+999999"}',
    '{"requests":1,"input_tokens":1,"output_tokens":1,"tool_calls":0,"cached_tokens":0,"cost_usd":null,"by_model":7}',
)


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("usage", USAGES)
async def test_a_run_whose_usage_is_malformed_says_so_and_stops_no_list(deployment: Deployment, usage: str) -> None:
    past_the_database(deployment, "UPDATE runs SET usage = %(usage)s WHERE id = %(own)s", usage=usage)

    listed = {run.id: run for run in await deployment.bench.store.runs.run_page()}

    own = listed[deployment.own.identity.run_id]
    assert own.malformed.startswith("usage ")
    assert own.usage == Usage()
    assert RunSchema.of(own).malformed == own.malformed
    assert listed[deployment.victim.identity.run_id].malformed == ""
    for by in UsageBy:
        assert await deployment.bench.store.runs.usage_totals(by) == []


@pytest.mark.spec("OPS-12.d")
async def test_a_step_whose_output_is_malformed_fails_with_what_takes_it_in(deployment: Deployment) -> None:
    store, bench = deployment.bench.store, deployment.bench
    task = make_task(bench.session_id, make_step("a"), make_step("b", depends_on=("a",)), make_step("c"))
    await store.tasks.create_task(task)
    worker = await open_worker(store)
    wish: dict[str, Any] = {"pools": ("default",), "capabilities": (), "live_workers": 1, "now_us": 1}
    a, c = (await store.claims.advance(worker, (), claim=2, **wish)).claims
    await store.claims.advance(worker, [completed(a, "fine"), completed(c, "clean")], claim=0, **wish)
    past_the_database(deployment, "UPDATE steps SET output = '[1e999]' WHERE key = %(key)s", key=a.step_key)

    (b,) = (await store.claims.advance(worker, (), claim=2, **wish)).claims
    steps = {step.step_id: step for step in await store.tasks.steps(task.id)}

    assert b.malformed.startswith("the row of 'a' is malformed: output ")
    assert (steps["a"].status, steps["a"].output) == (StepStatus.FAILED, None)
    assert steps["a"].error is not None
    assert steps["a"].error.type == "malformed_row"
    assert StepSchema.of(steps["a"]).model_dump()["error"] == steps["a"].error.as_json()
    assert (steps["c"].status, steps["c"].output) == (StepStatus.COMPLETED, "clean")
    assert (await store.tasks.result(a.step_key)).status is StepStatus.FAILED


# -- logs
@pytest.mark.spec("OPS-12.d", "EVT-02")
async def test_malformed_entries_of_a_log_are_reported_in_their_places(deployment: Deployment) -> None:
    store, own = deployment.bench.store, deployment.own.identity.run_id
    written = [
        await deployment.try_(statement)
        for statement in (
            f"{EVENT} SELECT id, last_seq + 1, 'tool_started', 1, '{{\"a\": 1e999}}' {NEXT_EVENT}",
            f"{NODE} VALUES (%(own)s, 1, 0, 'assistant', '{{\"v\": 1e999}}', 1)",
            "UPDATE runs SET last_seq = last_seq + 1, last_node = 1 WHERE id = %(own)s",
        )
    ]

    event = (await store.runs.events(own))[-1]
    (node,) = await store.runs.nodes(own)

    assert written == [{"rows": 1}] * 3
    assert (event.type, event.data["what"]) == (EventType.SECURITY, "malformed_row")
    assert "data is not JSON" in str(event.data["reason"])
    assert node.payload.keys() == {"v", "malformed_row"}


# -- the owner's sweep
@pytest.mark.spec("OPS-12.d", "DAG-05")
async def test_a_part_of_the_sweep_that_fails_each_time_stops_no_other_part(role_urls: RoleUrls) -> None:
    empty_postgres(role_urls.admin)
    with psycopg.connect(plain(role_urls.owner), autocommit=True) as owner:
        owner.execute(f"REVOKE SELECT ON reports FROM {ORCHESTRATOR}".encode())
    store = await open_store(role_urls.orchestrator)
    try:
        fast = Settings(lease_s=0.5, beat_s=0.1, sweep_s=0.1)
        async with OneLoop(store, workers=1, slots=1, settings=fast) as service:
            (alive,) = [worker.incarnation.worker_id for worker in service.workers]
            await store.sessions.register_worker(make_worker("wrk_dead"))
            await until(lambda: _is_gone(store, "wrk_dead"))
            assert alive != "wrk_dead"
    finally:
        await store.close()
        with psycopg.connect(plain(role_urls.owner), autocommit=True) as owner:
            owner.execute(f"GRANT SELECT ON reports TO {ORCHESTRATOR}".encode())


async def _is_gone(store: Any, worker_id: str) -> bool:
    return worker_id not in {worker.id for worker in await store.sessions.workers()}
