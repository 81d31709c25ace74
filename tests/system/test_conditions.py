"""Plans that decide: conditions and joins, from the document to replay and fork (CTL-01)."""

import asyncio
from typing import Any

import pytest

from soong import Soong, TaskStatus, plan, step
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.replay.task import Replayer, TaskReplay, read_task
from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.rerun import forked_plan
from tests.system.deployment import Deployment

FUNCTIONS = __name__


@step
def look(count: int) -> dict[str, Any]:
    return {"count": count, "names": ["x"] * count}


@step
def told(text: str, fixed: Any = None, praised: Any = None) -> str:
    return f"{text} {fixed} {praised}"


@plan
def shop(count: int = 3) -> str:
    """Look, then order or praise."""
    found = look(count)
    fixed = told.with_options(id="fix").when((found["count"] > 2) & (found["names"] != []))("fixed")
    praised = told.with_options(id="praise").when(f"not ({found['count']} > 2)")("praised")
    return told.with_options(id="report", join="any")("report", fixed, praised)


WORK = {"kind": "python", "call": "builtin.echo"}


async def replayed(service: Deployment, task_id: str) -> TaskReplay:
    record = await read_task(service.store, await service.store.tasks.task(task_id))
    return await Replayer(service.settings, Catalogue.of(service.settings, starts_servers=False)).replay(record)


def echo(step_id: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "kind": "python", "call": "builtin.echo", "depends_on": [*depends_on], **more}


@pytest.mark.spec("CTL-01.b", "CTL-01.c", "CTL-01.e/replay", "CTL-01.e/fork", "CTL-01.e/picture", "CTL-01.f")
async def test_a_plan_takes_the_way_that_its_results_say_and_again_in_replay_and_fork(service: Deployment) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        more, less = await asyncio.gather(soong.run(shop, {"count": 3}), soong.run(shop, {"count": 1}))

        steps = [{one.id: str(one.status) for one in ended.steps} for ended in (more, less)]
        assert steps == [
            {"look": "completed", "fix": "completed", "praise": "skipped", "report": "completed"},
            {"look": "completed", "fix": "skipped", "praise": "completed", "report": "completed"},
        ]
        assert (more.status, more.exit_code, more.output) == (TaskStatus.COMPLETED, 0, "report fixed None None None")
        praise = next(one for one in more.steps if one.id == "praise")
        assert praise.error is not None
        assert praise.error.message == "its condition is false: not (${look.output.count} > 2)"

        again = await replayed(service, more.id)
        assert (list(again.dag), again.is_same) == ([], True)

        rows = await service.store.tasks.steps(less.id)
        results = {one.key: await service.store.tasks.result(one.key) for one in rows}
        fork = forked_plan(await service.store.tasks.task(less.id), rows, results, "look")
        forked = await soong.run({name: value for name, value in fork.items() if name != "modules"}, {"count": 5})
        assert {one.id: str(one.status) for one in forked.steps} == steps[0]


@pytest.mark.spec("CTL-01.e/growth", "CTL-01.e/retry")
async def test_a_change_adds_steps_with_conditions_and_a_retry_decides_again(service: Deployment) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
    home = service.settings.home
    document: JsonObject = {
        "title": "grows",
        "steps": [
            echo("a", inputs={"n": 1}),
            echo("never", "a", when="${a.output.n} > 1"),
            {
                "id": "m",
                "kind": "map",
                "depends_on": ["a"],
                "over": [1, 2],
                "step": {**WORK, "inputs": {"n": "${item}"}},
            },
            {"id": "held", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 1}},
        ],
    }
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        task = await soong.start(document)
        added = [
            echo("joins", "never", join="done", inputs={"status": "${never.status}", "output": "${never.output}"}),
            echo("then", "a", when="${a.output.n} == 1"),
        ]
        await task.update({"add_steps": added})
        ended = await task.wait()
        outputs = {one.id: (str(one.status), one.output) for one in ended.steps}
        assert outputs["joins"] == ("completed", {"status": "skipped", "output": None})
        assert (outputs["then"][0], outputs["never"][0], ended.status) == ("completed", "skipped", TaskStatus.COMPLETED)

        await task.retry(from_step="a")
        again = {one.id: (str(one.status), one.attempt) for one in (await task.wait()).steps}
        assert (again["a"], again["never"][0], again["then"]) == (("completed", 2), "skipped", ("completed", 2))
        assert list((await replayed(service, task.id)).dag) == []


@pytest.mark.spec("CTL-01.d")
async def test_a_condition_that_cannot_be_decided_fails_its_step_and_a_wrong_one_the_check(service: Deployment) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        ended = await soong.run(
            {"title": "t", "steps": [echo("a", inputs={"n": "x"}), echo("b", "a", when="${a.output.n} > 1")]}
        )
        assert ended.status is TaskStatus.FAILED
        error = ended.steps[1].error
        assert error is not None
        assert "its condition `${a.output.n} > 1` cannot be decided: a number and a text cannot be put" in error.message

        wrong = r"steps\[1\].when: the reference '\$\{c.output\}': 'c' is not known here"
        with pytest.raises(InvalidPlanError, match=wrong):
            await soong.run({"title": "t", "steps": [echo("a"), echo("b", "a", when="${c.output}")]})
