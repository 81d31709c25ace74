import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, Run, RunStatus, Usage
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepError
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed, failed, held

PRESENT = pytest.mark.spec("DAG-03", "DAG-07")


# -- handing back
@pytest.mark.spec("OPS-06", "DAG-07")
async def test_step_released_is_ready_under_the_same_run_which_the_next_claim_resumes_with_its_context(
    scene: ContractHarness,
) -> None:
    first = await scene.start("a")
    run_id, node = first.identity.run_id, NewNode(NodeKind.USER, {"v": 1})
    await scene.store.runs.append(run_id, first.fence, nodes=[node], now_us=scene.now_us)
    stale = await scene.release(first)

    step = await scene.store.tasks.step(first.step_key)
    assert stale == frozenset()
    assert (step.status, step.run_id, step.lost_leases) == (StepStatus.READY, run_id, 0)
    assert (await scene.store.runs.run(run_id)).status is RunStatus.QUEUED

    claim = await scene.claim_one()

    assert claim.is_resumed
    assert claim.identity == first.identity
    assert len(await scene.store.runs.nodes(run_id)) == 1
    assert (await scene.event_types(run_id))[-3:] == ["step_released", "step_claimed", "run_resumed"]


@pytest.mark.spec("OPS-06")
async def test_worker_that_holds_steps_cannot_go(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    with pytest.raises(ConflictError, match="hands them back"):
        await scene.store.sessions.set_worker_state(scene.worker, ProcessState.GONE)
    await scene.release(claim)

    await scene.store.sessions.set_worker_state(scene.worker, ProcessState.GONE)
    assert await scene.store.sessions.workers() == []


# -- expiry
@PRESENT
async def test_expired_lease_is_claimed_with_a_higher_fence_and_the_same_run(scene: ContractHarness) -> None:
    first = await scene.start("a")

    sessions = await scene.expire()
    step = await scene.store.tasks.step(first.step_key)
    claim = await scene.claim_one(worker=await scene.another_worker())

    assert sessions == frozenset({scene.own.session_id})
    assert (step.status, step.lost_leases) == (StepStatus.READY, 1)
    assert claim.fence > first.fence
    assert (claim.identity, claim.is_resumed) == (first.identity, True)


@pytest.mark.spec("DAG-05")
async def test_how_a_worker_was_lost_is_in_the_step_its_log_and_its_error(scene: ContractHarness) -> None:
    first = await scene.start("a")
    because = "worker-1@vm died (SIGSEGV, segmentation fault)"
    await scene.store.claims.expire_worker(scene.worker, 0, max_lost_leases=2, now_us=scene.now_us, because=because)
    ready = await scene.store.tasks.step(first.step_key)
    worker = await scene.another_worker()
    await scene.claim(worker=worker)

    await scene.store.claims.expire_worker(
        worker, 0, max_lost_leases=2, now_us=scene.now_us, because=f"{because} again"
    )

    failed = await scene.store.tasks.step(first.step_key)
    events = await scene.store.runs.events(first.identity.run_id)
    said = [event.data["reason"] for event in events if event.type == "step_lease_expired"]
    assert (ready.status, ready.lost_to, ready.error) == (StepStatus.READY, because, None)
    assert failed.error is not None
    assert failed.error.message == f"it lost its lease 2 times; the last time {because} again"
    assert said == [because, f"{because} again"]
    await scene.settle(failed.key, FailurePolicy.KEEP)
    await scene.store.tasks.finish_task(scene.own, failed.task_id, now_us=scene.now_us)
    await scene.retry_task(failed.task_id)
    assert (await scene.store.tasks.step(first.step_key)).lost_to == ""


@PRESENT
async def test_worker_that_has_beaten_does_not_expire(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    heart = scene.store.heartbeat_writer()
    assert await asyncio.to_thread(heart.beat, scene.worker)
    heart.close()

    outcome = await scene.store.claims.expire_worker(scene.worker, 0, max_lost_leases=3, now_us=scene.now_us)

    assert outcome is None
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING


@PRESENT
async def test_expired_worker_is_gone_and_cannot_beat_or_claim_or_expire_again(scene: ContractHarness) -> None:
    lost = await scene.start("a")
    await scene.expire()

    heart = scene.store.heartbeat_writer()
    assert not await asyncio.to_thread(heart.beat, scene.worker)
    heart.close()
    assert await scene.claim() == ()
    assert await scene.store.sessions.workers() == []
    assert await scene.expire() is None
    assert (await scene.store.tasks.step(lost.step_key)).lost_leases == 1


@PRESENT
async def test_two_reapers_expire_a_worker_once(scene: ContractHarness, other_store: Store) -> None:
    claim = await scene.start("a")
    reapers = (scene.store, other_store)

    outcomes = await asyncio.gather(
        *(store.claims.expire_worker(scene.worker, 0, max_lost_leases=3, now_us=scene.now_us) for store in reapers)
    )

    assert set(outcomes) == {None, frozenset({scene.own.session_id})}
    assert (await scene.store.tasks.step(claim.step_key)).lost_leases == 1


@PRESENT
async def test_idle_worker_expires_without_sessions(scene: ContractHarness) -> None:
    assert await scene.expire() == frozenset()


@PRESENT
async def test_expiry_of_one_worker_leaves_the_steps_of_others(scene: ContractHarness) -> None:
    await scene.task("a", "b")
    await scene.claim_one()
    theirs = await scene.claim_one(worker=await scene.another_worker())

    await scene.expire()

    assert (await scene.store.tasks.step(theirs.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-05.d")
async def test_step_that_lost_its_lease_too_often_is_poisoned(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    for _ in range(2):
        claim = await scene.lost_fence(claim)
    await scene.expire(max_lost_leases=3)

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)

    assert (step.status, step.lost_leases) == (StepStatus.FAILED, 3)
    assert step.error is not None
    assert step.error.type == "poisoned"
    assert step.error.message == "it lost its lease 3 times; the last time its worker is gone"
    assert (run.status, run.end_reason) == (RunStatus.FAILED, EndReason.LEASE_LOST)
    assert [failure.key for failure in await scene.store.tasks.failures(scene.own)] == [claim.step_key]
    assert await scene.claim(worker=await scene.another_worker()) == ()


@PRESENT
async def test_finished_step_is_not_run_again_when_its_worker_dies(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim, "done")

    await scene.expire()

    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.output, step.lost_leases) == (StepStatus.COMPLETED, "done", 0)


# -- the race between an end and an expiry
@PRESENT
async def test_end_and_expiry_at_once_leave_exactly_one_of_them(scene: ContractHarness, other_store: Store) -> None:
    for _ in range(20):
        scene.worker = await scene.another_worker()
        claim = await scene.start("a")

        advance, expired = await asyncio.gather(
            scene.complete(claim),
            other_store.claims.expire_worker(scene.worker, 0, max_lost_leases=3, now_us=scene.now_us),
        )

        step = await scene.store.tasks.step(claim.step_key)
        was_stale = claim.identity.run_id in advance.stale
        assert expired is not None
        assert step.status is (StepStatus.READY if was_stale else StepStatus.COMPLETED)
        if was_stale:
            # The next round must find its own step only.
            worker = await scene.another_worker()
            await scene.complete(await scene.claim_one(worker=worker), worker=worker)


# -- functions that outlive their steps
LATE = StepError("time_limit", "the step took longer than 1 s", retryable=True)


async def late(scene: ContractHarness) -> Claim:
    """Return a claim of a step that is out of time and whose function still runs."""
    claim = await scene.start("a")
    held_ = held(claim)
    await scene.store.claims.report_progress(scene.worker, held_, "f still runs", error=LATE, now_us=scene.now_us)
    return claim


@pytest.mark.spec("DAG-03")
async def test_step_whose_function_outlives_its_time_stays_leased_and_is_overdue_until_it_is_released(
    scene: ContractHarness,
) -> None:
    claim = await late(scene)

    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.error) == (StepStatus.RUNNING, LATE)
    assert (await scene.store.tasks.session_work(scene.own)).has_overdue
    overdue = await scene.store.tasks.overdue(scene.own, step.task_id)
    assert [one.key for one in overdue] == [step.key]

    await scene.release(claim)

    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.error) == (StepStatus.READY, None)
    assert not (await scene.store.tasks.session_work(scene.own)).has_overdue


async def test_overdue_step_whose_worker_is_gone_fails_and_is_not_repeated(scene: ContractHarness) -> None:
    claim = await late(scene)

    await scene.expire()

    step = await scene.store.tasks.step(claim.step_key)
    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert (step.error.type, step.error.retryable) == ("unknown_after_crash", False)
    assert [one.key for one in await scene.store.tasks.failures(scene.own)] == [step.key]


async def test_task_that_fails_with_an_overdue_step_leaves_it_leased_until_its_function_ends(
    scene: ContractHarness,
) -> None:
    claim = await late(scene)
    task_id = claim.identity.task_id

    await scene.store.tasks.end_task(scene.own, task_id, TaskEvent.FAIL, reason="late", now_us=scene.now_us)

    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.FAILED
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING
    await scene.advance([claim.failed("time_limit", "late", retryable=True)], claim=0)
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.FAILED
    assert not await scene.store.tasks.failures(scene.own)


# -- progress and workers
@pytest.mark.spec("DAG-03.f")
async def test_progress_of_a_held_step_is_shown(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    await scene.store.claims.report_progress(scene.worker, held(claim), "3 of 7 files", now_us=scene.now_us)

    assert (await scene.store.tasks.step(claim.step_key)).progress == "3 of 7 files"


@pytest.mark.spec("DIS-04")
async def test_busy_of_a_worker_is_the_number_of_its_leases(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c")
    idle = await scene.another_worker()
    first, *_ = await scene.claim(3)
    await scene.advance([completed(first)])

    busy = {worker.id: worker.busy for worker in await scene.store.sessions.workers()}

    assert busy == {scene.worker: 2, idle: 0}


# -- runs that have ended in tasks that have not: what an owner writes folders of meanwhile
USED = Usage(requests=1)


async def found(
    scene: ContractHarness, *, after: tuple[int, str] = (0, ""), before_us: int = 0, limit: int = 100, owner: str = ""
) -> Sequence[Run]:
    return await scene.store.runs.ended_in_open_tasks(
        owner or scene.own.owner_id, after=after, before_us=before_us or scene.later_us, limit=limit
    )


def place(run: Run) -> tuple[int, str]:
    return run.ended_us or 0, run.id


@pytest.mark.spec("EVT-03.d")
async def test_ended_runs_of_open_tasks_are_found_in_the_order_of_their_ends(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c", "d", "e")
    first, unused, bad, other, _ = await scene.claim(5)
    scene.clock.advance(timedelta(seconds=1))
    await scene.advance([replace(completed(other), usage=USED)])
    scene.clock.advance(timedelta(seconds=1))
    await scene.advance([replace(completed(first), usage=USED), completed(unused), failed(bad)])

    runs = await found(scene)

    assert [run.id for run in runs] == [other.identity.run_id, *sorted([first.identity.run_id, bad.identity.run_id])]
    assert runs[0] == await scene.store.runs.run(other.identity.run_id)
    for number, run in enumerate(runs):
        assert list(await found(scene, after=place(run))) == list(runs[number + 1 :])
    assert list(await found(scene, limit=1)) == [runs[0]]
    assert list(await found(scene, before_us=scene.now_us)) == [runs[0]]
    assert list(await found(scene, owner="own_other")) == []


@pytest.mark.spec("EVT-03.d")
async def test_ended_runs_of_a_task_that_has_ended_are_not_among_them(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    claim = await scene.claim_one()
    await scene.advance([replace(completed(claim), usage=USED)])
    before = [run.id for run in await found(scene)]

    await scene.finish(task_id)

    assert (before, list(await found(scene))) == ([claim.identity.run_id], [])
