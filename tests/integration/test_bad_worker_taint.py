"""A worker's process that has turned bad, and the taint of its runs: it writes one down, and takes none back."""

import pytest

from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.spec import StepKind
from tests.contract.scene import completed
from tests.integration.bad_deployment import CALL, DENIED, NODE, NOTHING, Deployment, claim_one
from tests.model.builders import make_step, make_task, open_worker, take_turn

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
    "call": f"{CALL} SELECT id, 'c', 9, 't', 'e', 1, '', '{{}}', '{{}}', '', 'started' FROM runs WHERE id = %(run)s",
}


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.spec(f"OPS-12.c/{row}")) for row in ("event", "node", "call")]
)
async def test_it_writes_nothing_of_a_run_that_it_does_not_hold(deployment: Deployment, row: str) -> None:
    others = await others_runs(deployment)
    store = deployment.bench.store.runs

    async def rows() -> list[list[object]]:
        return [[*await store.events(run), *await store.nodes(run), *await store.calls(run)] for run in others.values()]

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
