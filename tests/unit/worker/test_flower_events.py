"""What a run's end puts into Flower, end reason by end reason."""

from typing import Any

import pytest
from celery import Celery

from shared.runs.status import EndReason
from shared.tasks.status import StepStatus
from shared.tasks.step import Claim, StepEnd
from shared.testing.builders import open_session, open_task, open_worker
from shared.testing.clock import START_US
from shared.testing.memory import MemoryStore
from worker.flower import FlowerEvents

BUDGETS = {"max_turns", "token_limit", "cost_limit", "time_limit"}


async def claimed() -> Claim:
    store = MemoryStore()
    await open_task(store, await open_session(store), "a")
    worker_id = await open_worker(store)
    advance = await store.advance(
        worker_id, (), claim=1, pools=("default",), capabilities=(), live_workers=1, now_us=START_US
    )
    (claim,) = advance.claims
    return claim


def waiting(events: FlowerEvents) -> list[tuple[str, dict[str, Any]]]:
    """Return what is to be sent; nothing is, as no thread was started."""
    return list(events._waiting)


@pytest.mark.spec("OPS-08.c")
@pytest.mark.parametrize("reason", EndReason)
async def test_each_limit_that_ends_a_run_is_counted_as_a_budget_stop_and_nothing_else_is(reason: EndReason) -> None:
    events = FlowerEvents(Celery("test"), "w@here")
    claim = await claimed()
    end = StepEnd(claim.step_key, claim.identity.run_id, claim.fence, StepStatus.FAILED, end_reason=reason)

    events.ended(claim, end)

    stops = [fields["args"] for type_, fields in waiting(events) if type_ == "task-agent-budget-stop"]
    expected = [f"limit={reason.value!r} run={claim.identity.run_id}"] if reason.value in BUDGETS else []
    assert stops == expected
