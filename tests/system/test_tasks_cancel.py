"""A cancel reaches everything of a task: what waits, what runs, what asks, and every program of it (DAG-06)."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

import tests.system.functions  # noqa: F401  # the plan check knows the functions of its own process
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.scripted import calls
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment, promised

pytestmark = pytest.mark.spec("DAG-06")

CANCEL_LIMIT_S = 1.0

TREE = """\
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[1]]
subprocess.Popen(sleeper)
subprocess.Popen(sleeper, start_new_session=True)
time.sleep(3600)
"""


def agent_step(step_id: str, tool: str, arguments: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": step_id,
        "instructions": "Do it.",
        "allowed_tools": [tool],
        **calls({"call": tool, "with": arguments}),
    }


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry a word of ours, the command's own and those that it started."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        is_alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if is_alive and mark in (process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.spec("DAG-06.d")
@pytest.mark.timed
@ON_POSTGRES
async def test_cancel_reaches_queued_running_asking_and_waiting_children_and_their_process_trees(
    service: Deployment, tmp_path: Path
) -> None:
    service.settings.home.joinpath("config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    program, mark = tmp_path / "tree.py", f"mark-{uuid4().hex}"  # folders of two tests may have one name
    program.write_text(TREE, encoding="utf-8")
    allowed, asked = asyncio.Event(), asyncio.Event()

    async def answer(request: PermissionRequest) -> PermissionDecision:
        if request.tool == "code.run_command":
            allowed.set()
            return PermissionDecision(Choice.ALLOW_ONCE)
        assert allowed.is_set(), "the program's question was asked first"
        asked.set()
        await asyncio.Event().wait()  # a person who is asleep
        raise AssertionError

    await service.start_workers(1)
    task = await service.submit(
        {
            "title": "everything at once",
            "steps": [
                agent_step("runs", "code.run_command", {"argv": [sys.executable, str(program), mark]}),
                {"id": "later", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3}},
                {
                    **agent_step("asks", "code.write_file", {"path": str(tmp_path / "x.txt"), "content": "x"}),
                    "depends_on": ["later"],
                },
                {"id": "sleeps", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3600}},
                {"id": "queued", "kind": "python", "call": "builtin.echo", "needs": ["a-label-that-nobody-has"]},
                {"id": "waits", "kind": "python", "call": "builtin.echo", "depends_on": ["runs", "asks", "queued"]},
            ],
        },
        callback=answer,
        project=tmp_path,
    )
    async with asyncio.timeout(30):
        await asked.wait()
    await service.until(lambda: _are_there(mark))
    await service.until(lambda: _stand(service, task, running=["runs", "asks", "sleeps"]))

    began = time.monotonic()
    await service.command(task, "cancel")
    await service.until(lambda: _stand(service, task, running=[]))
    cancelled_s = time.monotonic() - began
    left = marked(mark)

    steps = await service.steps(task)
    assert steps.pop("later").status is StepStatus.COMPLETED
    assert left == []  # a step has not ended before its programs have
    assert promised(cancelled_s, CANCEL_LIMIT_S)
    assert {step.status for step in steps.values()} == {StepStatus.CANCELLED}
    assert (await service.store.tasks.task(task.id)).status is TaskStatus.CANCELLED
    assert await service.store.consent.pending(task.session_id) == []
    for step in steps.values():
        run = await service.store.runs.run(step.run_id)
        assert run.status is RunStatus.CANCELLED
        assert run.end_reason in (EndReason.CANCELLED, EndReason.ABORTED_TOOLS)
    assert not (tmp_path / "x.txt").exists()


async def _are_there(mark: str) -> bool:
    """Say whether the command runs with both of the programs that it starts."""
    return sum("time.sleep(3600)" in " ".join(process.info["cmdline"]) for process in marked(mark)) == 2


async def _stand(service: Deployment, task: Task, *, running: Sequence[str]) -> bool:
    steps = await service.steps(task)
    if running:
        return all(steps[name].status is StepStatus.RUNNING for name in running)
    return all(step.status.is_terminal for step in steps.values())


@ON_SQLITE
async def test_one_cancelled_step_is_stopped_and_the_rest_of_its_task_goes_on(service: Deployment) -> None:
    await service.start_workers(1)
    sleeps: dict[str, Json] = {"id": "sleeps", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3600}}
    after: dict[str, Json] = {"id": "after", "kind": "python", "call": "builtin.echo", "depends_on": ["sleeps"]}
    other: dict[str, Json] = {"id": "other", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 2}}
    task = await service.submit({"title": "t", "steps": [sleeps, after, other]})
    await service.until(lambda: _stand(service, task, running=["sleeps", "other"]))

    await service.command(task, "update", {"cancel_steps": ["sleeps"], "reason": "not needed"})
    ended = await service.finished(task)

    statuses = {name: step.status for name, step in (await service.steps(task)).items()}
    assert statuses == {"sleeps": "cancelled", "after": "skipped", "other": "completed"}
    assert (ended.status, ended.reason) == (TaskStatus.FAILED, "sleeps was cancelled, after was skipped")
