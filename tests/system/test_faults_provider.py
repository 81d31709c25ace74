"""A model provider that is busy, down, silent, cut off or confused, over HTTP, beside worker processes (fault 22)."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step
from tests.servers import RedisServer
from tests.system.auditor import audit
from tests.system.deployment import BEAT_S, Deployment, kill
from tests.system.faults import threads
from tests.system.faults.provider import Provider

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("DIS-08", "DIS-09")]

LOADED = f"tests.system.faults.provider,{threads.MODULE}"
BEHAVIOURS = ("plain", "busy", "down", "refusing", "hanging", "cut", "rubbish", "huge", "confused")


@pytest.fixture
async def service(redis_live: RedisServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    # Ten megabytes take a busy machine longer than the scaled lease; no lease is to end here.
    url, extra = f"sqlite:///{tmp_path / 'soong.db'}", {"lease_s": 20.0}
    async with Deployment(url, redis_live.socket_url, tmp_path, extra=extra) as deployment:
        yield deployment


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


@pytest.mark.spec("DAG-06")
async def test_a_model_that_does_not_answer_holds_no_cancellation_up(service: Deployment, provider: Provider) -> None:
    await start(service, provider)
    task = await service.submit({"title": "t", "steps": [agent_step("hanging")]})

    async def is_asked() -> bool:
        return provider.hanging == 1

    await service.until(is_asked)
    await asyncio.sleep(2 * BEAT_S)  # it beats beside a call that hangs
    asked_at = time.monotonic()
    await service.command(task, "cancel")

    async def is_over() -> bool:
        return provider.hanging == 0 and (await service.steps(task))["hanging"].status is StepStatus.CANCELLED

    await service.until(is_over, within_s=5)
    assert time.monotonic() - asked_at < 5
    assert (await service.steps(task))["hanging"].lost_leases == 0


@pytest.mark.spec("DAG-07", "DAG-03")
async def test_a_worker_killed_in_a_model_call_is_succeeded_by_another(
    provider: Provider, redis_live: RedisServer, tmp_path: Path
) -> None:
    """Fault 1: the run goes on where its log ends, and asks the model again."""
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis_live.socket_url, tmp_path) as service:
        await start(service, provider)
        task = await service.submit({"title": "t", "steps": [agent_step("silent")]})

        async def is_asked() -> bool:
            return provider.hanging == 1

        await service.until(is_asked)
        kill(service.workers[0])
        killed_at = time.monotonic()
        await start(service, provider)
        ended = await service.finished(task)

        step = (await service.steps(task))["silent"]
        assert ended.status is TaskStatus.COMPLETED
        assert (step.lost_leases, step.attempt) == (1, 1)
        assert provider.asked["silent"] == 2
        assert time.monotonic() - killed_at < 20
        assert audit(service.database_url, at_rest=True).broken == []
