"""A worker's process that has turned bad, and what nobody holds: it may claim that like any worker, and no more."""

import pytest

from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.tasks.step import Lease
from tests.contract.scene import completed
from tests.integration.bad_deployment import CALL, DENIED, NODE, NOTHING, Deployment, claim_one
from tests.model.builders import make_children, make_map, make_step, make_task, open_worker, take_turn

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
    await bench.store.tasks.expand(bench.ownership, map_step.key, items, now_us=1)
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
