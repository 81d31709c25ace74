"""A step goes to a worker that has what it needs, within limits; pulled steps go to one each (DIS-03, DIS-04)."""

import asyncio
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from soong import Soong
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import ConcurrencyLimit, Step, Task
from soong.shared.sandbox.rooted import mark_project
from soong.testing import LocalService
from tests.scripted import call, calls
from tests.system.auditor import audit, read_effects
from tests.system.cli_scene import scene
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, ROOT, Deployment, kill
from tests.system.faults.scene import begun, effects_file, prove, stands_still, start_workers
from tests.warm import WarmProcess

pytestmark = pytest.mark.timeout(240)

TOOL = "tests.system.faults.effect_tool"
EXTRA = {"tools": (TOOL,), "no_worker_s": 0.5}


@ON_SQLITE
async def test_a_worker_that_nobody_started_for_a_service_says_in_one_line_when_it_is_ready_and_what_it_serves(
    service: Deployment,
) -> None:
    await service.start_workers(1, slots=4)

    await service.until(lambda: "is ready" in (service.home / "w1.log").read_text())

    words = "is ready: 4 slots, pools default, modules of SOONG_FUNCTIONS tests.system.scripts, approve"
    assert re.search(rf"^soong worker w1@\S+ {words}$", (service.home / "w1.log").read_text(), re.MULTILINE)


@ON_SQLITE
@pytest.mark.spec("CARD-2", "DIS-04")
async def test_steps_in_a_marked_project_go_to_workers_that_have_it(service: Deployment, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    project.mkdir()
    mark_project(project)
    look: JsonObject = {
        "id": "look",
        "instructions": "Look around.",
        **calls(call("code.list_dir", path="."), output={"done": True}),
    }
    await service.start_workers(1, slots=4)
    task = await service.submit({"title": "shop", "steps": [look]}, project=project)

    async def is_told_of() -> bool:
        return bool(await reasons(service, task.root_run_id))

    await service.until(is_told_of)
    await service.start_workers(1, slots=4, SOONG_PROJECTS=str(project))
    ended = await service.finished(task)

    events = await service.store.runs.events((await service.steps(task))["look"].run_id)
    (claimed,) = [event.data["worker"] for event in events if event.type == EventType.STEP_CLAIMED]
    by_pid = {worker.id: worker.pid for worker in await service.store.sessions.workers()}
    assert ended.status is TaskStatus.COMPLETED
    assert await reasons(service, task.root_run_id) == {f"no capable worker: needs the project at {project}"}
    assert by_pid[str(claimed)] == service.workers[1].pid


async def reasons(service: Deployment, run_id: str) -> set[str]:
    """Return what is told of steps that nobody is able to run."""
    events = await service.store.runs.events(run_id)
    return {str(event.data["reason"]) for event in events if event.type == EventType.STEP_UNCLAIMABLE}


@ON_SQLITE
@pytest.mark.spec("CARD-2", "DIS-04", "CARD-5.a", "CARD-5.c", "DIS-03.c")
async def test_a_worker_that_is_added_takes_what_has_no_slot_and_both_work_at_once(service: Deployment) -> None:
    sleeps: list[Json] = [
        {"id": f"s{number}", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3600}}
        for number in range(3)
    ]
    await service.start_workers(1, slots=1)
    task = await service.submit({"title": "wide", "steps": sleeps})

    async def running_on() -> set[str]:
        return {step.worker_id for step in (await service.steps(task)).values() if step.status is StepStatus.RUNNING}

    async def run(workers: int) -> bool:
        return len(await running_on()) == workers

    await service.until(lambda: run(1))
    (first,) = await running_on()
    await service.start_workers(1, slots=1)
    await service.until(lambda: run(2))

    statuses = sorted(step.status for step in (await service.steps(task)).values())
    assert first in await running_on()
    assert statuses == sorted([StepStatus.READY, StepStatus.RUNNING, StepStatus.RUNNING])


LIMIT = 3
STEPS = 12
EFFECT_S = 0.15


def plan(*, is_agent: bool, pool: str = "default") -> JsonObject:
    """Return steps that could all run at once."""
    work: dict[str, Json] = {"kind": "python", "call": "test.effect", "inputs": {"seconds": EFFECT_S}}
    if is_agent:
        work = {
            "instructions": "Do it.",
            "allowed_tools": ["test.effect"],
            **calls(call("test.effect", seconds=EFFECT_S)),
        }
    return {"title": "wide", "steps": [{"id": f"s{number}", "pool": pool, **work} for number in range(STEPS)]}


def most_at_once(service: Deployment) -> int:
    """Return how many effects were under way at one moment, by one clock for all processes."""
    now = most = 0
    for effect in sorted(read_effects(effects_file(service)), key=lambda one: one["monotonic_us"]):
        now += 1 if effect["at"] == "start" else -1
        most = max(most, now)
    return most


@ON_POSTGRES
@pytest.mark.spec("DIS-03", "CARD-2", "CARD-2.a", "CARD-2.c", "DIS-03.e")
@pytest.mark.parametrize(
    ("kind", "scope", "is_agent"),
    [
        ("session", "", False),
        ("definition", "definition:python:test.effect", False),
        ("model", "model:script", True),
        ("pool", "pool:big", False),
    ],
    ids=["session", "definition", "model", "pool"],
)
async def test_two_worker_processes_fill_a_limit_and_never_exceed_it(
    service: Deployment, kind: str, scope: str, is_agent: bool
) -> None:
    if scope:
        await service.store.claims.set_concurrency_limits([ConcurrencyLimit(scope, LIMIT)])
    await start_workers(service, 2, slots=8, SOONG_POOLS="default,big", SOONG_TOOLS=TOOL)
    limited = await service.submit(
        plan(is_agent=is_agent, pool="big" if kind == "pool" else "default"), max_concurrent=0 if scope else LIMIT
    )

    await prove(service, limited)

    processes = {effect["pid"] for effect in read_effects(effects_file(service))}
    assert begun(service) == STEPS
    assert most_at_once(service) == LIMIT
    assert processes <= {worker.pid for worker in service.workers}


PULLED = 20
PULL_WORKERS = 3
PULLS = """
from soong import scripted_agent


@scripted_agent("pulls.one")
async def one(inputs, agent):
    await agent.call("agent.task_claim_step", step_id="a")
    return "I was here"
"""


def pull_plan() -> JsonObject:
    output: Json = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    work: list[Json] = [
        {"id": f"p{number}", "claim": "pull", "instructions": "Say n.", "inputs": {"n": number}, "output": output}
        for number in range(PULLED)
    ]
    last: Json = {
        "id": "last",
        "kind": "python",
        "call": "builtin.echo",
        "depends_on": [f"p{number}" for number in range(PULLED)],
        "inputs": {"first": "${p0.output.n}", "last": f"${{p{PULLED - 1}.output.n}}"},
    }
    return {"title": "pulled", "steps": [*work, last]}


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


@ON_POSTGRES
@pytest.mark.spec("DAG-03", "CARD-2", "DAG-07")
async def test_three_pull_workers_on_two_workers_do_each_step_once_although_one_worker_is_killed(
    service: Deployment,
) -> None:
    await start_workers(service, 2, slots=2, SOONG_TOOLS=TOOL)
    task = await service.submit(pull_plan())
    async with Soong.connect(service.database_url, service.redis_url, agent_home=service.settings.home) as soong:
        await soong.task(task.id).dispatch_worker(
            count=PULL_WORKERS, model="script", allowed_tools=["test.effect"], script="tests.pull"
        )
        kill(await stopped_pull_worker(service, task))
        outcome = await soong.task(task.id).wait()

    steps = await service.steps(task)
    work = [steps[f"p{number}"] for number in range(PULLED)]
    assert outcome.status is TaskStatus.COMPLETED
    assert [step.output for step in work] == [{"n": number} for number in range(PULLED)]
    assert steps["last"].output == {"first": 0, "last": PULLED - 1}
    assert sum(step.lost_leases for step in work) >= 1
    assert {step.status for step in steps.values()} == {StepStatus.COMPLETED}
    for step in work:
        ends = Counter(event.type for event in await service.store.runs.events(step.run_id))
        assert (ends["step_completed"], ends["run_completed"]) == (1, 1)
    pull_workers = {step.run_id for step in steps.values() if step.is_pull_worker}
    assert len(pull_workers) == PULL_WORKERS
    assert {step.holder_run_id for step in work} <= pull_workers
    assert not audit(service.database_url, at_rest=True).broken


@pytest.mark.spec("DAG-03", "CARD-2", "DAG-01.c")
async def test_the_example_is_done_by_its_own_agent_and_shows_who_did_it(soong_service: LocalService) -> None:
    (soong_service.project / "a.txt").write_text("TODO one\nFIXME two\nTODO three\n")

    done = await soong_service.run(ROOT / "examples" / "pull.yaml")

    steps = {step.id: step for step in done.steps}
    assert (done.status, done.exit_code) == ("completed", 0)
    assert steps["tell"].output == {"said": "2 TODO, 1 FIXME, 0 NOTE."}
    assert steps["lead"].output == {"done": 3}
    assert {steps[name].held_by for name in ("todos", "fixmes", "notes")} == {steps["lead"].run}


@pytest.mark.spec("DAG-03", "CARD-2")
def test_a_task_says_that_it_waits_for_a_pull_worker_until_one_is_dispatched_on_the_command_line() -> None:
    with scene() as cli:
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
