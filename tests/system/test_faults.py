"""What must hold when a process dies: nothing is lost or accepted twice, half-done effects are reported (DAG-09)."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import tests.system.functions  # noqa: F401  # the plan check knows the functions of its own process
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.scripted import call, calls
from tests.system.deployment import LEASE_S, ON_SQLITE, SWEEP_S, Deployment, promised
from tests.system.faults.refund_tool import lines_of


def sleep_step(step_id: str, seconds: float, *depends_on: str) -> dict[str, Json]:
    return {
        "id": step_id,
        "kind": "python",
        "call": "builtin.sleep",
        "inputs": {"seconds": seconds, "name": step_id},
        "depends_on": list(depends_on),
    }


def fan(width: int, seconds: float) -> dict[str, Json]:
    names = [f"s{index}" for index in range(width)]
    return {
        "title": "fan",
        "steps": [
            sleep_step("root", 0.01),
            *(sleep_step(name, seconds, "root") for name in names),
            sleep_step("join", 0.01, *names),
        ],
    }


async def completions(service: Deployment, task: Task) -> dict[str, int]:
    """Return how often each step's completion was accepted, over all of its runs."""
    counts: dict[str, int] = {}
    for run in await service.store.runs.list_runs(task_id=task.id):
        for event in await service.store.runs.events(run.id):
            if event.type == EventType.STEP_COMPLETED:
                counts[run.identity.step_key] = counts.get(run.identity.step_key, 0) + 1
    return counts


@pytest.mark.timed
@pytest.mark.spec("DAG-07.a", "DAG-03.c")
async def test_a_killed_worker_costs_a_lease_and_no_finished_step_runs_again(service: Deployment) -> None:
    await service.start_workers(2, slots=4)
    task = await service.submit(fan(40, 0.7))

    async def both_work_and_some_are_done() -> bool:
        steps = (await service.steps(task)).values()
        done = sum(step.status is StepStatus.COMPLETED for step in steps)
        return done >= 3 and len({step.worker_id for step in steps if step.status.is_leased}) == 2

    await service.until(both_work_and_some_are_done)
    before = await service.steps(task)
    victim = service.workers[0]
    held = [step for step in before.values() if step.status.is_leased and await service.worker_of(step) is victim]
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.monotonic()

    async def all_were_taken_over() -> bool:
        # What ended between the look and the kill keeps its fence; everything else got a higher one.
        now = await service.steps(task)
        return all(now[step.step_id].status.is_terminal or now[step.step_id].fence > step.fence for step in held)

    await service.until(all_were_taken_over)
    recovery_s = time.monotonic() - killed_at
    ended = await service.finished(task)

    after = await service.steps(task)
    assert held
    assert ended.status is TaskStatus.COMPLETED
    assert promised(recovery_s, 2 * LEASE_S + 2 * SWEEP_S)
    assert set((await completions(service, task)).values()) == {1}
    for name, step in before.items():
        if step.status is StepStatus.COMPLETED:
            assert after[name].fence == step.fence


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
    await service.until(lambda: len(lines_of(refunds)) == 1)
    service.workers[0].kill()
    await asyncio.to_thread(service.workers[0].wait, 5)


@ON_SQLITE
@pytest.mark.spec("DAG-09", "DAG-09.c")
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


@ON_SQLITE
@pytest.mark.spec("DAG-09", "DAG-09.d", "DAG-09.e")
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


@ON_SQLITE
@pytest.mark.spec("DAG-09", "EXE-06.a", "EXE-06.e")
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
