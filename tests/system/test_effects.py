"""The effect ledger: what a dead worker left half done is told and never repeated by itself (DAG-09)."""

import asyncio
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Outcome
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.scripted import call, calls
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.faults.refund_tool import lines_of

pytestmark = [ON_SQLITE, pytest.mark.spec("DAG-09")]

TOOLS = "tests.system.faults.refund_tool"
EXTRA = {"tools": (TOOLS,)}


async def start_worker(service: Deployment, *, dies_after_s: str = "") -> None:
    refunds = str(service.home / "refunds.jsonl")
    await service.start_workers(1, SOONG_TOOLS=TOOLS, REFUNDS=refunds, DIES_AFTER_S=dies_after_s)


def plan(tool: str, script: str) -> JsonObject:
    step: dict[str, Json] = {"id": "pay", "instructions": "Pay.", "allowed_tools": [tool], "script": script}
    return {"title": "pay", "steps": [step]}


async def until_killed_in_the_call(service: Deployment, refunds: Path) -> None:
    """Wait until the tool has done what it does, and kill the worker before anybody can write that down."""

    async def is_done() -> bool:
        return len(lines_of(refunds)) == 1

    await service.until(is_done)
    service.workers[0].kill()
    await asyncio.to_thread(service.workers[0].wait, 5)


@pytest.mark.spec("DAG-09.c")
async def test_a_write_cut_off_by_a_crash_is_reported_to_model_and_approver_and_done_again_only_when_asked_for(
    service: Deployment, tmp_path: Path
) -> None:
    """microsoft/agent-framework#3938, crewAIInc/crewAI#5802: refunds were repeated by every recovery."""
    refunds = tmp_path / "refunds.jsonl"
    asked: list[PermissionRequest] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(Choice.ALLOW_ONCE)

    await start_worker(service)
    task = await service.submit(plan("shop.refund", "tests.refund"), project=tmp_path, callback=allow)
    await until_killed_in_the_call(service, refunds)
    await start_worker(service)

    ended = await service.finished(task)

    step = (await service.steps(task))["pay"]
    result = await service.store.tasks.result(step.key)
    done = lines_of(refunds)
    assert (ended.status, step.outcome) == (TaskStatus.COMPLETED, Outcome.PARTIAL)
    assert result.output == {"first": "unknown_after_crash", "second": 2}
    assert len(done) == len({str(line["effect_id"]) for line in done}) == 2
    (unknown,) = result.unknown_effects
    assert (unknown["tool"], unknown["shown"], unknown["effect_id"]) == (
        "shop.refund",
        "order A7",
        done[0]["effect_id"],
    )
    assert [len(request.unknown_effects) for request in asked] == [0, 1]
    assert asked[1].unknown_effects[0]["effect_id"] == done[0]["effect_id"]
    assert "may or may not have happened" in str(asked[1].unknown_effects[0]["message"])


@pytest.mark.spec("DAG-09.d", "DAG-09.e")
async def test_a_read_cut_off_by_a_crash_is_made_again_under_its_id_and_the_next_attempt_has_another(
    service: Deployment, tmp_path: Path
) -> None:
    refunds = tmp_path / "refunds.jsonl"
    await start_worker(service)
    task = await service.submit(plan("shop.look", "tests.look"), project=tmp_path)
    await until_killed_in_the_call(service, refunds)
    await start_worker(service)
    await service.finished(task)
    await service.command(task, "retry", {"from": "pay"})

    ended = await service.finished(task)

    first, again, other = lines_of(refunds)
    step = (await service.steps(task))["pay"]
    assert (ended.status, step.outcome, step.attempt) == (TaskStatus.COMPLETED, Outcome.CLEAN, 2)
    assert first["effect_id"] == again["effect_id"] != other["effect_id"]
    assert first["pid"] != again["pid"]


@pytest.mark.spec("EXE-06.a", "EXE-06.e")
async def test_the_log_has_a_read_whose_worker_was_killed_in_its_first_second(
    service: Deployment, tmp_path: Path
) -> None:
    await start_worker(service, dies_after_s="0.6")
    reads = calls(call("code.list_dir", path="."), call("shop.count", order="A7"), at_once=True)
    step: dict[str, Json] = {"id": "pay", "instructions": "", "allowed_tools": ["code.list_dir", "shop.count"], **reads}
    task = await service.submit({"title": "pay", "steps": [step]}, project=tmp_path)
    await asyncio.to_thread(service.workers[0].wait, 20)
    run_id = (await service.steps(task))["pay"].run_id

    log = [(event.type, event.data.get("tool")) for event in await service.store.runs.events(run_id)]

    assert ("tool_started", "shop.count") in log
    assert ("tool_completed", "shop.count") not in log
    assert len(lines_of(tmp_path / "refunds.jsonl")) == 1
