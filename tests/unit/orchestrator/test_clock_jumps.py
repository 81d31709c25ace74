"""A wall clock that jumps delays no retry by more than the longest wait there is."""

from datetime import timedelta

import pytest

from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.shared.core import timing
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Step, StepEnd, StepError
from tests.model.builders import make_step, open_session, open_task, open_worker
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore


async def waiting_retry(store: MemoryStore, clock: FakeClock) -> tuple[Scheduler, Ownership, str]:
    """Let a step fail and its retry be planned by the clock as it is; return the step's key last."""
    own, worker_id = await open_session(store), await open_worker(store)
    task_id = await open_task(store, own, make_step("a", max_attempts=2))
    advance = await store.claims.advance(
        worker_id, (), claim=1, pools=("default",), capabilities=(), live_workers=1, now_us=clock.now_us()
    )
    claim = advance.claims[0]
    error = StepError("provider_failed", "the provider answered 500", retryable=True)
    end = StepEnd(
        claim.step_key, claim.identity.run_id, claim.fence, StepStatus.FAILED, EndReason.PROVIDER_FAILED, error=error
    )
    await store.claims.advance(
        worker_id, [end], claim=0, pools=("default",), capabilities=(), live_workers=1, now_us=clock.now_us()
    )
    scheduler = Scheduler(store, store, Expander(store, store, clock), clock)
    await scheduler.reconcile(own)
    return scheduler, own, f"{task_id}/a"


async def looked_at(store: MemoryStore, scheduler: Scheduler, own: Ownership, step_key: str) -> Step:
    await scheduler.reconcile(own)
    return await store.tasks.step(step_key)


@pytest.mark.spec("DAG-05")
async def test_a_clock_that_jumps_back_an_hour_delays_no_retry_by_an_hour() -> None:
    store, clock = MemoryStore(), FakeClock()
    scheduler, own, key = await waiting_retry(store, clock)

    clock.jump_wall(timedelta(hours=-1))

    assert (await looked_at(store, scheduler, own, key)).status is StepStatus.READY


async def test_a_retry_whose_time_has_not_come_still_waits() -> None:
    store, clock = MemoryStore(), FakeClock()
    scheduler, own, key = await waiting_retry(store, clock)

    clock.jump_wall(timedelta(seconds=2 - timing.STEP_BACKOFF_LIMIT_S))
    early = await looked_at(store, scheduler, own, key)
    clock.advance(timedelta(seconds=timing.STEP_BACKOFF_LIMIT_S))
    late = await looked_at(store, scheduler, own, key)

    assert early.status is StepStatus.PENDING
    assert late.status is StepStatus.READY
