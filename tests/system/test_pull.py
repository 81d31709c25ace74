"""Steps that are pulled, by real worker processes: each is done once, whoever dies; and the example of the docs."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from soong import Soong
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from tests.system.auditor import audit
from tests.system.cli_scene import scene
from tests.system.deployment import ROOT, Deployment, kill
from tests.system.faults.scene import stands_still, start_workers
from tests.warm import WarmProcess

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("DAG-03", "CARD-2")]

TOOL = "tests.system.faults.effect_tool"
STEPS = 20
PULL_WORKERS = 3

PULLS = """
from soong import scripted_agent


@scripted_agent("pulls.one")
async def one(inputs, agent):
    await agent.call("agent.task_claim_step", step_id="a")
    return "I was here"
"""


def plan() -> JsonObject:
    output: Json = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    work: list[Json] = [
        {"id": f"p{number}", "claim": "pull", "instructions": "Say n.", "inputs": {"n": number}, "output": output}
        for number in range(STEPS)
    ]
    last: Json = {
        "id": "last",
        "kind": "python",
        "call": "builtin.echo",
        "depends_on": [f"p{number}" for number in range(STEPS)],
        "inputs": {"first": "${p0.output.n}", "last": f"${{p{STEPS - 1}.output.n}}"},
    }
    return {"title": "pulled", "steps": [*work, last]}


@pytest.fixture
async def service(postgres_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(postgres_url, redis_url, tmp_path, extra={"tools": (TOOL,)}) as deployment:
        yield deployment


async def held_steps(service: Deployment, task: Task) -> list[Step]:
    return [step for step in await service.store.tasks.steps(task.id) if step.holder_run_id and step.status.is_leased]


async def stopped_pull_worker(service: Deployment, task: Task) -> WarmProcess:
    """Stop one of two workers that pull, three steps into the work, and return it: it holds a step, and keeps it."""

    async def is_midway() -> bool:
        done = (await service.store.tasks.counts(task.id)).get(StepStatus.COMPLETED, 0)
        return done >= 3 and len({step.worker_id for step in await held_steps(service, task)}) == 2

    while True:
        await service.until(is_midway, within_s=90)
        for step in (await held_steps(service, task))[:1]:
            victim = await service.worker_of(step)
            victim.send_signal(signal.SIGSTOP)
            assert await asyncio.to_thread(stands_still, victim.pid)
            await asyncio.sleep(0.2)  # what it has sent is committed
            if any(held.worker_id == step.worker_id for held in await held_steps(service, task)):
                return victim
            victim.send_signal(signal.SIGCONT)


@pytest.mark.spec("DAG-07")
async def test_three_pull_workers_on_two_workers_do_each_step_once_although_one_worker_is_killed(
    service: Deployment,
) -> None:
    await start_workers(service, 2, slots=2, SOONG_TOOLS=TOOL)
    task = await service.submit(plan())
    async with Soong.connect(service.database_url, service.redis_url, agent_home=service.settings.home) as soong:
        await soong.dispatch_worker(
            task.id, count=PULL_WORKERS, model="script", allowed_tools=["test.effect"], script="tests.pull"
        )
        kill(await stopped_pull_worker(service, task))
        outcome = await soong.wait(task.id)

    steps = await service.steps(task)
    work = [steps[f"p{number}"] for number in range(STEPS)]
    assert outcome.status is TaskStatus.COMPLETED
    assert [step.output for step in work] == [{"n": number} for number in range(STEPS)]
    assert steps["last"].output == {"first": 0, "last": STEPS - 1}
    assert sum(step.lost_leases for step in work) >= 1
    assert {step.status for step in steps.values()} == {StepStatus.COMPLETED}
    for step in work:
        ends = Counter(event.type for event in await service.store.runs.events(step.run_id))
        assert (ends["step_completed"], ends["run_completed"]) == (1, 1)
    pull_workers = {step.run_id for step in steps.values() if step.is_pull_worker}
    assert len(pull_workers) == PULL_WORKERS
    assert {step.holder_run_id for step in work} <= pull_workers
    assert not audit(service.database_url, at_rest=True).broken


@pytest.mark.spec("DAG-01.c")
def test_the_example_is_done_by_its_own_agent_and_shows_who_did_it() -> None:
    with scene() as cli:
        (cli.folder / "a.txt").write_text("TODO one\nFIXME two\nTODO three\n")

        done = cli.json("run", str(ROOT / "examples" / "pull.yaml"))

        steps: dict[str, Any] = {step["id"]: step for step in done["steps"]}
        assert (done["status"], done["exit_code"]) == ("completed", 0)
        assert steps["tell"]["output"] == {"said": "2 TODO, 1 FIXME, 0 NOTE."}
        assert steps["lead"]["output"] == {"done": 3}
        assert {steps[name]["held_by"] for name in ("todos", "fixmes", "notes")} == {steps["lead"]["run"]}


def test_a_task_says_that_it_waits_for_a_pull_worker_until_one_is_dispatched_on_the_command_line() -> None:
    with scene(is_warm=True) as cli:
        (cli.folder / "pulls.py").write_text(PULLS)
        cli.environment["SOONG_FUNCTIONS"] = "pulls"
        text = "title: t\nsteps:\n  - {id: a, claim: pull, instructions: x}\n"
        task = cli.json("run", cli.plan(text), "--detach")["id"]
        shown = cli.run("tasks", "show", task).stdout

        refused = cli.run("tasks", "add-workers", task, "--agent", "nobody")
        dispatched = cli.run("tasks", "add-workers", task, "--model", "script", "--script", "pulls.one")
        cli.run("runs", "tail", f"{task}/a", "-f")  # until its run has ended
        ended = cli.json("tasks", "show", task)
        for _ in range(50):
            if ended["status"] == "completed":
                break
            ended = cli.json("tasks", "show", task)

    steps = {step["id"]: step for step in ended["steps"]}
    assert re.search(rf"1 step waits for a pull worker: .*soong tasks add-workers {task}", shown)
    assert refused.returncode == 1
    assert "there is no agent definition 'nobody'" in refused.stderr
    assert dispatched.returncode == 0, dispatched.stderr
    assert ended["status"] == "completed"
    assert (steps["a"]["output"], steps["pull-worker-1"]["is_pull_worker"]) == ("I was here", True)
