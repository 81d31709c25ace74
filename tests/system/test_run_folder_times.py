"""Which runs have folders, and how soon after their end, in a service with the intervals that users have."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.spec import TaskStatus
from tests.scripted import call, calls
from tests.servers import RedisServer
from tests.system.deployment import Deployment, promised

pytestmark = pytest.mark.timed

FUNCTIONS = "tests.system.functions"
LOOKS: JsonObject = {"id": "a", "instructions": "", **calls(call("code.list_dir", path="."), output={"done": True})}
LIMIT_S = 5


@pytest.fixture
async def service(redis_live: RedisServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    sweep_s = Settings.model_fields["sweep_s"].default
    extra = {"sweep_s": sweep_s, "functions": (FUNCTIONS,)}
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with Deployment(url, redis_live.socket_url, tmp_path, extra=extra) as deployment:
        await deployment.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
        yield deployment


async def complete(service: Deployment, run_id: str) -> float:
    """Wait until a run's folder has all of its log; return how long after the run's end that was."""
    found: list[Run] = []

    async def is_complete() -> bool:
        run = await service.store.runs.run(run_id)
        log = service.settings.runs / run_id / "events.jsonl"
        found[:] = [run]
        return run.ended_us is not None and log.exists() and len(log.read_text().splitlines()) == run.last_seq

    await service.until(is_complete, within_s=40)
    assert found[0].ended_us is not None
    return time.time() - found[0].ended_us / 1_000_000


@pytest.mark.spec("EVT-03.a", "EVT-03.d/task-lasts")
async def test_an_agents_folder_is_complete_within_five_seconds_while_its_task_lasts(service: Deployment) -> None:
    lasts: JsonObject = {"id": "b", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 20}}
    task = await service.submit({"title": "t", "steps": [LOOKS, lasts]})

    took_s = await complete(service, (await service.steps(task))["a"].run_id)

    assert (await service.store.tasks.task(task.id)).status is TaskStatus.RUNNING
    assert promised(took_s, LIMIT_S)


@pytest.mark.spec("EVT-03.c", "EVT-03.d/task-ends")
async def test_a_function_has_a_folder_when_it_failed_wrote_files_or_made_it(service: Deployment) -> None:
    steps: list[JsonObject] = [
        {"id": "wrote", "call": "test.keep", "inputs": {"writes": True}},
        {"id": "asked", "call": "test.keep", "inputs": {}},
        {"id": "failed", "call": "builtin.fail", "inputs": {"message": "no"}},
        {"id": "quiet", "call": "builtin.echo", "inputs": {}},
    ]
    task = await service.submit({"title": "t", "steps": [{"kind": "python", **step} for step in steps]})
    await service.finished(task)
    runs = {step_id: step.run_id for step_id, step in (await service.steps(task)).items()}

    took_s = [await complete(service, runs[step_id]) for step_id in ("wrote", "asked", "failed")]

    assert promised(max(took_s), LIMIT_S)
    assert (service.settings.runs / runs["wrote"] / "workspace" / "notes.txt").read_text() == "kept"
    errors = (service.settings.runs / runs["failed"] / "logs" / "errors.jsonl").read_text().splitlines()
    failed, run_failed = map(json.loads, errors)
    assert (failed["type"], failed["error"], failed["message"]) == (
        "step_failed",
        "execution_failed",
        "RuntimeError: no",
    )
    assert run_failed["type"] == "run_failed"
    assert not (service.settings.runs / runs["quiet"]).exists()
