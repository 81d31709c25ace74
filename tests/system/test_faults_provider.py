"""A model provider that is busy, down, silent, cut off or confused, over HTTP, beside worker processes (fault 22)."""

from collections.abc import AsyncIterator

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Step
from tests.system.auditor import audit
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.faults import threads
from tests.system.faults.provider import Provider

pytestmark = [ON_SQLITE, pytest.mark.spec("DIS-08", "DIS-09")]

LOADED = f"tests.system.faults.provider,{threads.MODULE}"
BEHAVIOURS = ("plain", "busy", "down", "refusing", "hanging", "cut", "rubbish", "huge", "confused")
EXTRA = {"lease_s": 20.0}
"""Ten megabytes take a busy machine longer than the scaled lease; no lease is to end here."""


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as provider:
        yield provider


def agent_step(behaviour: str, **more: Json) -> dict[str, Json]:
    return {"id": behaviour, "instructions": "Say that you are done.", "model": f"wire:{behaviour}", **more}


async def start(service: Deployment, provider: Provider) -> None:
    await service.start_workers(1, slots=16, SOONG_FUNCTIONS=LOADED, FAULT_PROVIDER=provider.url)


async def failures(service: Deployment, step: Step) -> int:
    """Return how many model requests of a step failed."""
    events = await service.store.runs.events(step.run_id)
    return [event.type for event in events].count(EventType.MODEL_FAILED)


@pytest.mark.spec("DIS-08.a", "DIS-09.a", "DIS-09.b")
async def test_each_misfortune_ends_its_step_by_name_and_no_other(service: Deployment, provider: Provider) -> None:
    await start(service, provider)
    first = await service.submit({"title": "t", "steps": [agent_step("plain")]})
    await service.finished(first)
    before = await threads.listed(service)

    steps: list[Json] = [agent_step(name, timeout_s=1.5 if name == "hanging" else 20.0) for name in BEHAVIOURS]
    task = await service.submit({"title": "t", "steps": steps})
    ended = await service.finished(task)

    found = await service.steps(task)
    ends = {name: step.error.type if step.error else str(step.status) for name, step in found.items()}
    assert ended.status is TaskStatus.FAILED
    assert ends == {
        "plain": "completed",
        "busy": "completed",
        "down": "provider_failed",
        "refusing": "provider_failed",
        "hanging": "time_limit",
        "cut": "completed",
        "rubbish": "provider_failed",
        "huge": "completed",
        "confused": "completed",
    }
    assert {name: await failures(service, found[name]) for name in ("busy", "down", "refusing", "cut", "rubbish")} == {
        "busy": 2,
        "down": 5,
        "refusing": 1,
        "cut": 2,
        "rubbish": 1,
    }
    # Two calls of one id and one of none: each has an id and a result of its own.
    answered = [message["tool_call_id"] for message in provider.told["confused"] if message["role"] == "tool"]
    assert len(set(answered)) == len(answered) == 3
    assert {step.lost_leases for step in found.values()} == {0}
    after = await threads.listed(service)
    assert await threads.outside_pools(service, after) == await threads.outside_pools(service, before)
    assert audit(service.database_url, at_rest=True).broken == []
