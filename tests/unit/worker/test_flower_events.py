"""What a run's end puts into Flower, end reason by end reason."""

from typing import Any

import pytest
from celery import Celery
from msgspec.structs import replace

from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.worker.flower import FlowerEvents
from tests.model.builders import open_session, open_task, open_worker, take_turn
from tests.model.memory import MemoryStore

BUDGETS = {"max_turns", "token_limit", "cost_limit", "time_limit"}


async def claimed() -> Claim:
    store = MemoryStore()
    await open_task(store, await open_session(store), "a")
    worker_id = await open_worker(store)
    advance = await take_turn(store, worker_id)
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

    stops = [fields for type_, fields in waiting(events) if type_ == "task-agent-budget-stop"]
    expected = [(claim.identity.run_id, reason.value)] if reason.value in BUDGETS else []
    assert [(fields["uuid"], fields["limit"]) for fields in stops] == expected
    assert not [fields for fields in stops if "args" in fields]  # those stay the run's own


@pytest.mark.spec("OPS-08.a", "OPS-02.a")
async def test_a_run_that_parks_goes_on_waiting_and_a_run_that_is_taken_up_leaves_every_state_of_ours() -> None:
    events = FlowerEvents(Celery("test"), "w@here")
    claim = await claimed()

    events.approval_waiting(claim.identity, "code.write_file")
    events.ended(claim, None)
    parked = [type_ for type_, _ in waiting(events)]
    events.started(replace(claim, is_resumed=True))
    events.ended(claim, None)

    assert parked == ["task-agent-approval-waiting"]
    assert [type_ for type_, _ in waiting(events)][1:] == [
        "task-retried",
        "task-received",
        "task-started",
        "task-agent-released",
    ]
    assert {fields.get("exception", "") for _, fields in waiting(events)} == {""}
    assert {fields["uuid"] for _, fields in waiting(events)} == {claim.identity.run_id}
