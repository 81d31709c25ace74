"""A worker's process that has turned bad, within what its database role lets it try (threats 11-16, 20)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.approvals.broker import MAX_OPEN
from soong.orchestrator.operations.administration import verify
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.tasks.step import Lease
from soong.shared.engine.tasks.verdict import GrowMap
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.permissions.request import Choice, RequestState
from soong.shared.permissions.signing import Signer, prove
from soong.shared.storage.sql.engine.rows import decision_body, request_body
from soong.shared.tools.ports import Verdict
from tests.contract.scene import completed
from tests.integration.bad_deployment import (
    CALL,
    DECIDED_REQUEST,
    DENIED,
    INSERT_REQUEST,
    NODE,
    NOTHING,
    REQUEST,
    USE,
    Deployment,
    claim_one,
    columns_of,
)
from tests.integration.consent import ConsentHarness, make_call, verdicts
from tests.model.builders import (
    make_children,
    make_decision,
    make_map,
    make_request,
    make_step,
    make_task,
    open_worker,
    take_turn,
)
from tests.waiting import dropped, until


@asynccontextmanager
async def asking(deployment: Deployment) -> AsyncIterator["asyncio.Task[list[Verdict]]"]:
    """The victim asks and waits; its callback shows the question and does not answer before the test lets it."""
    bench = deployment.bench
    gate = bench.gate(deployment.victim, deployment.victim_worker)
    waiting = asyncio.get_running_loop().create_task(verdicts(gate.decide(make_call(deployment.victim))))
    await until(lambda: bool(bench.callback.shown))
    try:
        yield waiting
    finally:
        await dropped(waiting)


REFUSED: dict[str, str] = {
    "raise a question in another run's name": INSERT_REQUEST.replace("%(run)s", "%(victim)s"),
    "raise a question in the name of a run that has ended": INSERT_REQUEST.replace("%(run)s", "%(finished)s"),
    "raise a question in the name of the session's own agent": (
        f"{REQUEST} SELECT %(id)s, id, session_id, %(call)s, 1, %(body)s FROM runs WHERE role = 'orchestrator' LIMIT 1"
    ),
    "raise a question of its own run in another session": INSERT_REQUEST.replace("%(session)s", "'sess_other'").replace(
        "%(run)s", "%(own)s"
    ),
    "raise a question that is decided": (
        f"{DECIDED_REQUEST} VALUES (%(id)s, %(own)s, %(session)s, 'c', 'decided', %(body)s)"
    ),
    "alter what is asked while it is shown": "UPDATE permission_requests SET body = %(body)s",
    "answer for a person": "INSERT INTO answers (request_id, choice) SELECT id, 'allow_once' FROM permission_requests",
    "read what others answered": "SELECT * FROM answers",
    "write an unsigned decision": (
        "INSERT INTO decisions (request_id, id, body) SELECT id, 'dec_x', '{}' FROM permission_requests"
    ),
    "write a decision signed with a key of its own": (
        "INSERT INTO decisions (request_id, id, body) SELECT id, 'dec_x', %(decision)s FROM permission_requests"
    ),
    "publish its own key": (
        "INSERT INTO signing_keys (id, public_key, created_us) VALUES ('key_mine', decode(%(key)s, 'hex'), 1)"
    ),
    "exchange the deployment's key": "UPDATE signing_keys SET public_key = decode(%(key)s, 'hex')",
    "revoke the deployment's key": (
        "INSERT INTO key_retirements (key_id, is_revoked, retired_us) SELECT id, 1, 1 FROM signing_keys"
    ),
    "call a key that was revoked good again": "DELETE FROM key_retirements",
    "use a decision that nobody made": f"{USE} VALUES ('dec_x', %(own)s, 'c', 1)",
    "write a call into another's ledger": (
        f"{CALL} VALUES (%(victim)s, 'c', 9, 't', 'e', 1, '', '{{}}', '{{}}', '', 'started')"
    ),
    "write into another's log": (
        "INSERT INTO events (run_id, seq, type, time_us, data) VALUES (%(victim)s, 99, 'permission_decided', 1, '{}')"
    ),
    "write into another's context": f"{NODE} VALUES (%(victim)s, 99, 0, 'user', '{{}}', 1)",
    "hold the session's own agent": (
        "UPDATE runs SET worker_id = %(own_worker)s, status = 'running' WHERE role IN ('main', 'orchestrator')"
    ),
    "give its work to another": "UPDATE runs SET worker_id = %(victim_worker)s WHERE id = %(own)s",
    "pose as another's process": (
        "INSERT INTO workers (id, credential) SELECT 'wrk_x', credential FROM workers WHERE id = %(victim_worker)s"
    ),
    "report of another's run": (
        "INSERT INTO reports (run_id, type, data, time_us) VALUES (%(victim)s, 'security', '{}', 1)"
    ),
    "read what was reported": "SELECT * FROM reports",
    "write into the audit log": (
        "INSERT INTO audit (chain, number, time_us, kind, data, digest) VALUES ('c', 1, 1, 'answer', '{}', '')"
    ),
    "read the audit log": "SELECT * FROM audit",
    "read who may use the API": "SELECT * FROM api_tokens",
    "loosen its session's policy": "UPDATE sessions SET policy = '{}'",
    "widen its surface": "UPDATE surfaces SET body = '{}'",
}
UNTOUCHED: dict[str, str] = {
    "withdraw another's question": "UPDATE permission_requests SET state = 'withdrawn' WHERE run_id = %(victim)s",
    "end another's call": "UPDATE calls SET status = 'ended' WHERE run_id = %(victim)s",
    "count another's log on": "UPDATE runs SET last_seq = last_seq + 1 WHERE id = %(victim)s",
    "take another's run": "UPDATE runs SET worker_id = %(own_worker)s, fence = fence + 1 WHERE id = %(victim)s",
    "take another's step": "UPDATE steps SET worker_id = %(own_worker)s, fence = fence + 1 WHERE key = %(victim_step)s",
    "park another's run": "UPDATE steps SET status = 'blocked', worker_id = '' WHERE key = %(victim_step)s",
    "end another's step with a result of its own": (
        "UPDATE steps SET status = 'completed', output = '\"mine\"' WHERE key = %(victim_step)s"
    ),
    "clear another's taint": "UPDATE runs SET tainted_us = NULL WHERE id = %(victim)s",
    "taint another's run": "UPDATE runs SET tainted_us = 1 WHERE id = %(victim)s",
    "declare another gone": "UPDATE workers SET state = 'gone' WHERE id = %(victim_worker)s",
    "beat for another": "UPDATE workers SET beat = beat + 1 WHERE id = %(victim_worker)s",
}
"""What is tried and finds no row that it may touch; what is in REFUSED is refused."""


@pytest.mark.spec("PER-12.a", "PER-16")
async def test_what_others_hold_cannot_be_touched_and_their_question_is_answered_as_if_nobody_had_tried(
    deployment: Deployment,
) -> None:
    bench, signer = deployment.bench, Signer.generate()
    async with asking(deployment) as waiting:
        (request,) = await bench.pending()
        lie = replace(request, id="req_lie", identity=deployment.victim.identity, tool="code.read_file")
        forged = signer.sign(make_decision(request))
        values = {
            "id": "req_lie",
            "call": "call_9",
            "body": request_body(replace(lie, proof=prove(deployment.victim.token, lie))),
            "decision": decision_body(forged),
            "key": signer.public_key.hex(),
        }

        tried = {**REFUSED, **UNTOUCHED}
        outcomes = {what: await deployment.try_(statement, **values) for what, statement in tried.items()}
        bench.callback.answer()
        (verdict,) = await waiting

    assert outcomes == {**dict.fromkeys(REFUSED, DENIED), **dict.fromkeys(UNTOUCHED, NOTHING)}
    assert verdict.is_allowed
    assert [shown.id for shown in bench.callback.shown] == [request.id]
    assert bench.callback.shown[0].identity == deployment.victim.identity
    found = await verify(bench.store.audit, bench.store.keys)
    assert found.holds


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize(
    "statement",
    [
        f"{USE} SELECT id, %(victim)s, 'call_1', 1 FROM decisions",
        f"{USE} SELECT id, %(own)s, 'call_1', 1 FROM decisions",
    ],
    ids=["as the other", "as itself"],
)
async def test_a_decision_that_another_waits_for_cannot_be_used_up(deployment: Deployment, statement: str) -> None:
    bench = deployment.bench
    async with asking(deployment) as waiting:
        bench.callback.answer()
        (verdict,) = await waiting

    assert verdict.is_allowed
    assert await deployment.try_(statement) == DENIED
    assert list(await bench.store.audit.uses()) == []


async def decided(deployment: Deployment, choice: Choice) -> str:
    """Let the bad one ask rightly, and be answered; return the id of the decision."""
    bench = deployment.bench
    bench.callback.choices = [choice]
    bench.callback.answer()
    request = deployment.own_request()
    assert (await deployment.raise_own(request))["rows"] == 1
    await bench.broker.review([bench.session_id])
    await until(lambda: _is_closed(bench, request.id))
    decision = await bench.store.consent.decision_of(request.id)
    assert decision is not None
    return decision.id


async def _is_closed(bench: ConsentHarness, request_id: str) -> bool:
    return (await bench.store.consent.request(request_id))[1] is not RequestState.PENDING


USE_OWN = f"{USE} VALUES (%(decision)s, %(own)s, %(call)s, 1)"


@pytest.mark.spec("PER-12")
async def test_its_own_yes_is_used_once_and_for_its_own_call(deployment: Deployment) -> None:
    decision = await decided(deployment, Choice.ALLOW_ONCE)

    other = await deployment.try_(USE_OWN, decision=decision, call="call_2")
    first = await deployment.try_(USE_OWN, decision=decision, call="call_1")
    again = await deployment.try_(USE_OWN, decision=decision, call="call_1")

    assert (other, first, again) == (DENIED, {"rows": 1}, {"refused": "UniqueViolation"})
    assert await deployment.try_("DELETE FROM consumptions") == DENIED


@pytest.mark.spec("PER-12", "PER-14")
async def test_its_own_no_is_never_used(deployment: Deployment) -> None:
    decision = await decided(deployment, Choice.DENY)

    assert await deployment.try_(USE_OWN, decision=decision, call="call_1") == DENIED


@pytest.mark.spec("PER-12", "PER-16")
async def test_a_yes_that_it_used_for_another_input_is_found(deployment: Deployment) -> None:
    """What it does in its own process nobody can forbid; what it writes of it does not fit the decision."""
    decision = await decided(deployment, Choice.ALLOW_ONCE)
    await deployment.try_(USE_OWN, decision=decision, call="call_1")
    call = f"{CALL} VALUES (%(own)s, 'call_1', 0, 't', 'e', 1, %(digest)s, '{{}}', '{{}}', %(decision)s, 'started')"
    assert (await deployment.try_(call, decision=decision, digest="f" * 64))["rows"] == 1

    found = await verify(deployment.bench.store.audit, deployment.bench.store.keys)

    assert not found.holds
    (problem,) = found.misused
    assert "the call's input is another than the one that was allowed" in problem


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "an identity of its own choice": lambda body: {**body, "identity": {"role": "main"}},
    "the id of another's question": lambda body: {**body, "id": "req_victim"},
    "another call than its row's": lambda body: {**body, "tool_call_id": "call_other"},
    "an unknown field": lambda body: {**body, "args": {}},
    "a field too few": lambda body: {name: value for name, value in body.items() if name != "shown"},
    "an unknown word": lambda body: {**body, "suggested": "allow_always"},
    "a number for a text": lambda body: {**body, "tool": 7},
    "a text for a flag": lambda body: {**body, "is_dangerous": "no"},
    "a list that is a text": lambda body: {**body, "tags": 5},
    "a number beyond all": lambda body: {**body, "created_us": 10**30},
    "no object": lambda _body: [],
    "a body that nobody could read": lambda body: {**body, "preview": "x" * 2_000_000},
}


@pytest.mark.spec("CARD-3", "PER-12")
async def test_a_row_that_is_no_question_is_shown_to_nobody_reported_and_holds_nobody_back(
    deployment: Deployment,
) -> None:
    bench = deployment.bench
    for number, alter in enumerate(MALFORMED.values()):
        request = deployment.own_request(f"call_{number}")
        body = alter(json.loads(request_body(request)))
        values = {"call": request.tool_call_id, "body": json.dumps(body), "run": deployment.own.identity.run_id}
        assert (await deployment.try_(INSERT_REQUEST, id=request.id, **values))["rows"] == 1

    async with asking(deployment) as waiting:
        bench.callback.answer()
        (verdict,) = await waiting

    assert verdict.is_allowed
    assert [shown.identity for shown in bench.callback.shown] == [deployment.victim.identity]
    assert await bench.store.consent.pending(bench.session_id) == []
    entries = await bench.store.audit.audit_entries(kinds=[AuditKind.SECURITY])
    assert [entry.data["what"] for entry in entries] == ["malformed_request"] * len(MALFORMED)


@pytest.mark.spec("PER-07")
@pytest.mark.parametrize(
    ("count", "is_proven", "shown"), [(MAX_OPEN + 50, True, MAX_OPEN), (10_000, False, 0)], ids=["proven", "forged"]
)
async def test_a_flood_of_questions_shows_a_bounded_number_and_holds_nobody_back(
    deployment: Deployment, count: int, is_proven: bool, shown: int
) -> None:
    bench = deployment.bench
    await _flood(deployment, count, is_proven=is_proven)

    await bench.broker.review([bench.session_id])
    await until(lambda: _is_calm(bench))
    async with asking(deployment) as waiting:
        bench.callback.answer()
        (verdict,) = await waiting

    assert verdict.is_allowed
    of_dropped_questions = [one for one in bench.callback.shown if one.identity == deployment.own.identity]
    assert len(of_dropped_questions) <= shown
    told = [entry.data for entry in await bench.store.audit.audit_entries(kinds=[AuditKind.SECURITY])]
    assert sum(int(str(data["closed"])) for data in told if data["what"] == "questions_dropped") == count - shown


async def _is_calm(bench: ConsentHarness) -> bool:
    return len(await bench.store.consent.pending(bench.session_id, limit=MAX_OPEN + 1)) <= MAX_OPEN


async def _flood(deployment: Deployment, count: int, *, is_proven: bool) -> None:
    """Raise many questions of the bad one's own run, as fast as the database takes them."""
    bare = [replace(make_request(deployment.own, f"call_{number}"), scope="") for number in range(count)]
    requests = [replace(one, proof=prove(deployment.own.token, one)) for one in bare] if is_proven else bare
    rows = [{**columns_of(one), "id": one.id} for one in requests]
    told = await deployment.try_(
        f"{REQUEST} SELECT row->>'id', %(own)s, %(session)s, row->>'call', 1, row->>'body'"
        " FROM json_array_elements(%(rows)s::json) AS row",
        rows=json.dumps(rows),
    )
    assert told == {"rows": count}


EVENT = "INSERT INTO events (run_id, seq, type, time_us, data)"
TAKE_STEP = "UPDATE steps SET status = 'running', worker_id = %(own_worker)s, fence = {fence}, starts = {starts}"
HELD_BY_NOBODY: dict[str, str] = {
    "write into its context": f"{NODE} VALUES (%(free)s, 1, 0, 'user', '{{}}', 1)",
    "write into its log": f"{EVENT} VALUES (%(free)s, 99, 'run_started', 1, '{{}}')",
    "write into the log of the session's own agent": (
        f"{EVENT} SELECT id, 99, 'task_completed', 1, '{{}}' FROM runs WHERE role = 'orchestrator' LIMIT 1"
    ),
    "count its context on": "UPDATE runs SET last_node = 3 WHERE id = %(free)s",
    "count its log on": "UPDATE runs SET last_seq = last_seq + 1 WHERE id = %(free)s",
    "say when it started": "UPDATE runs SET started_us = 1 WHERE id = %(free)s",
    "raise its fence": "UPDATE runs SET fence = 9 WHERE id = %(free)s",
    "say what it used": "UPDATE runs SET usage = '{\"requests\": 1}' WHERE id = %(free)s",
    "end it": "UPDATE runs SET status = 'failed', end_reason = 'failed', ended_us = 1 WHERE id = %(free)s",
    "hold it without its step": (
        "UPDATE runs SET worker_id = %(own_worker)s, status = 'running', fence = fence + 1 WHERE id = %(free)s"
    ),
    "count starts that were none": "UPDATE steps SET starts = 1 WHERE key = %(free_step)s",
    "raise the step's fence": "UPDATE steps SET fence = fence + 1 WHERE key = %(free_step)s",
    "take the step and keep its fence": (
        f"{TAKE_STEP.format(fence='fence', starts='starts + 1')} WHERE key = %(free_step)s"
    ),
    "take the step with a fence beyond all": (
        f"{TAKE_STEP.format(fence='9007199254740991', starts='starts + 1')} WHERE key = %(free_step)s"
    ),
    "take the step as if it had been started before": (
        f"{TAKE_STEP.format(fence='fence + 1', starts='starts + 2')} WHERE key = %(free_step)s"
    ),
    "take a step that waits for another": (
        f"{TAKE_STEP.format(fence='fence + 1', starts='starts + 1')} WHERE key = %(waiting_step)s"
    ),
    "complete the step without holding it": (
        "UPDATE steps SET status = 'completed', output = '\"mine\"' WHERE key = %(free_step)s"
    ),
    "open a step and leave what it waits for": "UPDATE steps SET status = 'ready' WHERE key = %(waiting_step)s",
    "block a step": "UPDATE steps SET status = 'blocked' WHERE key = %(free_step)s",
    "open a step before what it waits for has ended": (
        "UPDATE steps SET status = 'ready', open_deps = 0, ready_us = 1 WHERE key = %(waiting_step)s"
    ),
    "let a step wait for nothing, so that the end of what it waits for fails": (
        "UPDATE steps SET open_deps = 0 WHERE key = %(waiting_step)s"
    ),
    "let a step wait for fewer than have still to end": (
        "UPDATE steps SET open_deps = open_deps - 1 WHERE key = %(joining_step)s"
    ),
    "complete a map step before its items have ended": (
        "UPDATE steps SET status = 'completed', open_deps = 0, ended_us = 1 WHERE key = %(map_step)s"
    ),
    "let a map step wait for fewer items than have still to end": (
        "UPDATE steps SET open_deps = 1 WHERE key = %(map_step)s"
    ),
    "let a step wait for more": "UPDATE steps SET open_deps = open_deps + 1 WHERE key = %(waiting_step)s",
    "say how far a step is": "UPDATE steps SET progress = 'done' WHERE key = %(free_step)s",
    "give its own step to another run": "UPDATE steps SET holder_run_id = %(victim)s WHERE key = %(own_step)s",
    "settle its own failure": "UPDATE steps SET status = 'failed', is_settled = 1 WHERE key = %(own_step)s",
    "write far beyond its own log": f"{EVENT} VALUES (%(own)s, 9000000, 'run_started', 1, '{{}}')",
    "write far beyond its own context": f"{NODE} VALUES (%(own)s, 9000000, 0, 'user', '{{}}', 1)",
    "write into what its own log has": f"{EVENT} VALUES (%(own)s, 1, 'run_started', 1, '{{}}')",
    "count its own log down": "UPDATE runs SET last_seq = 0 WHERE id = %(own)s",
    "count its own log beyond all": "UPDATE runs SET last_seq = 9007199254740991 WHERE id = %(own)s",
    "raise its run's fence": "UPDATE runs SET fence = fence + 1 WHERE id = %(own)s",
    "say when its own run started": "UPDATE runs SET started_us = 1 WHERE id = %(own)s",
    "count its step as never started": "UPDATE steps SET starts = 0 WHERE key = %(own_step)s",
    "raise its own fence": "UPDATE steps SET fence = fence + 1 WHERE key = %(own_step)s",
}


@pytest.mark.spec("PER-12", "OPS-12")
async def test_what_nobody_holds_is_only_claimed(deployment: Deployment) -> None:
    bench, waits = deployment.bench, ("free", "waiting")
    waiting = (make_step("waiting", depends_on=waits[:1]), make_step("joining", depends_on=waits))
    task = make_task(bench.session_id, "free", *waiting, make_map("map"))
    await bench.store.tasks.create_task(task)
    step = task.steps[0]
    assert step.run is not None
    map_step = await bench.store.tasks.step(f"{task.id}/map")
    items = make_children(map_step, task.root_run.identity, "x", "y")
    await bench.store.tasks.write_verdict(bench.ownership, map_step.key, GrowMap(tuple(items)), now_us=1)
    others = {f"{name}_step": f"{task.id}/{name}" for name in ("waiting", "joining", "map")}
    names = {"free": step.run.identity.run_id, "free_step": step.key, **others}

    outcomes = {what: await deployment.try_(statement, **names) for what, statement in HELD_BY_NOBODY.items()}

    assert outcomes == dict.fromkeys(HELD_BY_NOBODY, DENIED)
    good_worker = await open_worker(deployment.bench.store)
    advance = await take_turn(deployment.bench.store, good_worker, now_us=1)
    (claim,) = advance.claims
    assert (claim.identity.run_id, claim.fence, claim.is_resumed, claim.malformed) == (names["free"], 1, False, "")


@pytest.mark.spec("PER-12", "OPS-12")
async def test_what_it_left_beyond_its_logs_holds_nobody_up(deployment: Deployment) -> None:
    bench, own = deployment.bench, deployment.own
    for place in (20, 21, 22):
        assert await deployment.try_(f"{EVENT} VALUES (%(own)s, {place}, 'left', 1, '{{}}')") == {"rows": 1}
        assert await deployment.try_(f"{NODE} VALUES (%(own)s, {place}, 0, 'user', '{{}}', 1)") == {"rows": 1}
    held = Lease(own.step_key, own.identity.run_id, own.fence)
    await deployment.own_store.claims.release(deployment.own_worker, [held], reason="left", now_us=1)

    claim = await claim_one(bench.store, await open_worker(bench.store), bench)
    log = [NewEvent(EventType.TOOL_STARTED)]
    nodes = [NewNode(NodeKind.USER, {"v": 1})]
    appended = await bench.store.runs.append(claim.identity.run_id, claim.fence, nodes=nodes, events=log, now_us=1)
    await bench.store.tasks.cancel_task(
        bench.ownership, claim.step_key.partition("/")[0], reason="enough", now_us=bench.clock.now_us()
    )

    assert (claim.identity.run_id, claim.is_resumed, claim.malformed) == (own.identity.run_id, True, "")
    assert appended.last_node == 23
    types = [event.type for event in await bench.store.runs.events(own.identity.run_id)]
    assert types[-7:] == [*["left"] * 3, "step_released", "step_claimed", "run_resumed", "tool_started"]


@pytest.mark.spec("PER-12", "OPS-12")
async def test_what_it_has_ended_it_changes_no_more(deployment: Deployment) -> None:
    await take_turn(deployment.own_store, deployment.own_worker, [completed(deployment.own)], claim=0, now_us=1)

    outcomes = [
        await deployment.try_("UPDATE steps SET output = '\"other\"' WHERE key = %(own_step)s"),
        await deployment.try_(
            "UPDATE runs SET status = 'running', end_reason = NULL, ended_us = NULL WHERE id = %(own)s"
        ),
        await deployment.try_(f"{NODE} VALUES (%(own)s, 1, 0, 'user', '{{}}', 1)"),
        await deployment.try_(f"{CALL} VALUES (%(own)s, 'c', 9, 't', 'e', 1, '', '{{}}', '{{}}', '', 'started')"),
        await deployment.try_(
            "INSERT INTO reports (run_id, type, data, time_us) VALUES (%(own)s, 'security', '{}', 1)"
        ),
    ]

    assert outcomes == [NOTHING, NOTHING, DENIED, DENIED, DENIED]
