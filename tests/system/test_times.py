"""Configured times are kept, and the folders of runs say when."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from soong import PermissionDecision, PermissionRequest, Soong
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.spec import TaskStatus
from tests.scripted import call, calls, error_of
from tests.servers import RedisServer
from tests.system.deployment import Deployment, promised

CONFIG = """
[permission]
timeout_s = 1

[tools]
default_timeout_ms = 300
"""

WAIT: Mapping[str, Any] = {
    "name": "team.wait",
    "description": "Waits.",
    "permission": "readonly",
    "input_schema": {"type": "object", "properties": {}},
    "command": "sleep",
    "args": ["60"],
}

PLAN: Mapping[str, Any] = {
    "title": "two that take too long",
    "steps": [
        {
            "id": "asks",
            "instructions": "x",
            "allowed_tools": ["code.write_file"],
            **calls(call("code.write_file", path="a.txt", content="x")),
        },
        {"id": "waits", "instructions": "x", "allowed_tools": ["team.wait"], **calls(call("team.wait"))},
    ],
}


async def sleeping_person(_request: PermissionRequest) -> PermissionDecision:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.spec("EXE-08.a", "EXE-08.g", "PER-13.l")
async def test_questions_and_calls_of_a_run_have_the_times_that_the_file_gives(folder: Path) -> None:
    tools = folder / "home" / "tools"
    tools.mkdir(parents=True)
    (folder / "home" / "config.toml").write_text(CONFIG)
    (tools / "wait.json").write_text(json.dumps(WAIT))
    async with Soong.embedded(agent_home=folder / "home", workers=1) as soong:
        outcome = await soong.run(PLAN, permission_callback=sleeping_person, project=folder)

    assert error_of(outcome.outputs["asks"]) == "permission_timeout"
    assert error_of(outcome.outputs["waits"]) == "timeout"


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


@pytest.mark.timed
@pytest.mark.spec("EVT-03.a", "EVT-03.d/task-lasts")
async def test_an_agents_folder_is_complete_within_five_seconds_while_its_task_lasts(service: Deployment) -> None:
    lasts: JsonObject = {"id": "b", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 20}}
    task = await service.submit({"title": "t", "steps": [LOOKS, lasts]})

    took_s = await complete(service, (await service.steps(task))["a"].run_id)

    assert (await service.store.tasks.task(task.id)).status is TaskStatus.RUNNING
    assert promised(took_s, LIMIT_S)


@pytest.mark.timed
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
