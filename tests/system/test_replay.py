"""What the rows keep of a task is enough to play it again with no model, no tool and nobody to ask (DAG-11)."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.replay.task import Replayer, ReplayVerdict, TaskRecord, TaskReplay, read_task
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepKind, StepStatus, TaskStatus
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.model.builders import make_answer
from tests.scripted import call, calls
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment, kill
from tests.warm import called

pytestmark = pytest.mark.spec("DAG-11.a", "EVT-01.c")


HOOK = """\
import json, sys
call = json.load(sys.stdin)
print(json.dumps({"input": {**call["input"], "content": call["input"]["content"].upper()}, "context": ["shouted"]}))
"""
PLAN: JsonObject = {
    "title": "Replay",
    "inputs": {"names": ["one.txt", "two.txt"]},
    "steps": [
        {
            "id": "each",
            "kind": "map",
            "over": "${inputs.names}",
            "as": "name",
            "step": {"instructions": "Read ${name}.", "inputs": {"path": "${name}"}, "script": "tests.read_path"},
        },
        {
            "id": "report",
            "depends_on": ["each"],
            "allowed_tools": ["code.write_file"],
            "inputs": {"all": "${each.output}"},
            "instructions": "Write the report.",
            "script": "tests.report",
        },
        {
            "id": "end",
            "kind": "python",
            "call": "builtin.echo",
            "depends_on": ["report"],
            "inputs": {"x": "${report.output}"},
        },
    ],
}


def emptied(folder: Path) -> None:
    """Take away what the task worked on: a replay reads nothing of it."""
    shutil.rmtree(folder)
    folder.mkdir()


async def answered(request: PermissionRequest) -> PermissionDecision:
    is_fine = request.shown.endswith("yes.txt")
    return PermissionDecision(Choice.ALLOW_ONCE if is_fine else Choice.DENY, "I said so")


def project_for(service: Deployment) -> Path:
    """Return a new project with two files, under a configuration with a hook."""
    hook = service.settings.home / "hook.py"
    hook.write_text(HOOK, encoding="utf-8")
    config = f'[[hooks.pre]]\nname = "shout"\ntools = "code.write_file"\ncommand = ["{sys.executable}", "{hook}"]\n'
    service.settings.home.joinpath("config.toml").write_text(config, encoding="utf-8")
    project = service.home / "project"
    project.mkdir()
    for name in ("one.txt", "two.txt"):
        project.joinpath(name).write_text(f"this is {name}\n", encoding="utf-8")
    return project


async def recorded(service: Deployment, project: Path) -> TaskRecord:
    """Run a task with a map, a hook, two questions and a function to its end, and read it."""
    await service.start_workers(1)
    task = await service.submit(PLAN, {"names": ["one.txt", "two.txt"]}, project=project, callback=answered)
    ended = await service.finished(task)
    assert ended.status is TaskStatus.COMPLETED, service.logs()
    assert project.joinpath("yes.txt").read_text() == "REPORT"
    emptied(project)
    return await read_task(service.store, ended)


_KEPT: list[tuple[Settings, TaskRecord]] = []


@pytest.fixture
async def kept(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, TaskRecord]:
    """A recorded task and the settings of its home, once for all tests that only look at it."""
    if not _KEPT:
        folder = tmp_path_factory.mktemp("kept")
        async with Deployment(f"sqlite:///{folder / 'soong.db'}", redis_url, folder) as service:
            _KEPT.append((service.settings, await recorded(service, project_for(service))))
    return _KEPT[0]


@pytest.fixture
def record(kept: tuple[Settings, TaskRecord]) -> TaskRecord:
    return kept[1]


async def replayed(settings: Settings, record: TaskRecord, step_id: str = "") -> TaskReplay:
    catalogue = Catalogue.of(settings, starts_servers=False)
    return await Replayer(settings, catalogue).replay(record, step_id)


# -- the whole of it
async def test_a_task_goes_the_same_way_again(kept: tuple[Settings, TaskRecord]) -> None:
    found = await replayed(*kept)

    assert (found.is_same, list(found.dag)) == (True, [])
    played = {run.step: run for run in found.runs}
    assert {name: run.verdict for name, run in played.items()} == {
        "each[one.txt]": ReplayVerdict.SAME,
        "each[two.txt]": ReplayVerdict.SAME,
        "report": ReplayVerdict.SAME,
        "end": ReplayVerdict.GIVEN,
    }
    assert (played["report"].turns, played["report"].calls) == (3, 2)


async def test_a_plan_or_a_result_that_is_another_is_found(kept: tuple[Settings, TaskRecord]) -> None:
    settings, record = kept
    plan = json.loads(json.dumps(record.task.plan))
    plan["steps"][1]["instructions"] = "Write another report."
    each = next(step for step in record.steps if step.kind is StepKind.MAP)
    other = replace(each, spec=replace(each.spec, over=["one.txt", "three.txt"]))
    changed = replace(
        record, task=replace(record.task, plan=plan), steps=[other if step is each else step for step in record.steps]
    )

    found = await replayed(settings, changed)

    places = {difference.place for difference in found.dag}
    assert places == {"step report, instructions", "step each, over", "step each, item 2"}
    assert not found.is_same


async def test_a_step_that_did_what_it_could_not_is_found(kept: tuple[Settings, TaskRecord]) -> None:
    settings, record = kept
    broken = [
        replace(run, events=[event for event in run.events if event.type != EventType.STEP_READY])
        for run in record.runs
    ]

    found = await replayed(settings, replace(record, runs=broken))

    assert {str(difference.replayed) for difference in found.dag} == {"not possible when pending"}


# -- a run of several lives
SLOW: JsonObject = {
    "title": "lives",
    "steps": [
        {
            "id": "asks",
            "instructions": "x",
            "allowed_tools": ["code.write_file", "code.read_file"],
            **calls(call("code.read_file", path="one.txt"), call("code.write_file", path="yes.txt", content="x")),
        }
    ],
}


@pytest.mark.spec("PER-13")
@ON_POSTGRES
async def test_a_run_that_was_parked_and_lost_its_worker_is_played_life_by_life(service: Deployment) -> None:
    project = project_for(service)
    await service.start_workers(1, SOONG_PARK_AFTER_S="0.2")
    task = await service.submit(SLOW, project=project, approval_mode=ApprovalMode.INBOX)

    async def is_blocked() -> bool:
        return (await service.steps(task))["asks"].status is StepStatus.BLOCKED

    await service.until(is_blocked)
    kill(service.workers[0])
    await service.start_workers(1)
    (request,) = await service.store.consent.pending(task.session_id)
    await service.store.consent.answer(make_answer(request))
    await service.orchestrator.parts.notifier.permission_raised(request.id, request.identity.session_id)
    ended = await service.finished(task)
    assert ended.status is TaskStatus.COMPLETED, service.logs()

    found = await replayed(service.settings, await read_task(service.store, ended))

    assert found.is_same, found.as_json()
    (run,) = found.runs
    assert (run.verdict, run.lives, run.calls) == (ReplayVerdict.SAME, 2, 2)


# -- as a user
def environment(service: Deployment) -> dict[str, str]:
    return {
        **os.environ,
        "SOONG_AGENT_HOME": str(service.settings.home),
        "SOONG_DATABASE_URL": service.database_url,
        "SOONG_REDIS_URL": service.redis_url,
    }


async def soong(service: Deployment, *arguments: str) -> tuple[int, str, str]:
    run = partial(called, "soong.orchestrator.cli", env=environment(service), cwd=service.home, limit_s=60)
    done = await asyncio.to_thread(run, arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.spec("DAG-11.b")
@ON_SQLITE
async def test_a_user_replays_a_task_and_forks_it(service: Deployment) -> None:
    project = project_for(service)
    record = await recorded(service, project)
    code, said, _ = await soong(service, "replay", record.task.id)
    assert (code, said.splitlines()[-1]) == (0, "the same: 3 runs, 22 events"), said
    code, said, _ = await soong(service, "replay", record.task.id, "--step", "report", "--json")
    assert (code, json.loads(said)["runs"][0]["verdict"]) == (0, "same")
    code, _, why = await soong(service, "replay", record.task.id, "--step", "repot")
    assert (code, why.strip()) == (2, "soong: there is no step 'repot'; did you mean 'report'?")

    again = await read_task(service.store, record.task)
    assert [run.run.last_seq for run in again.runs] == [run.run.last_seq for run in record.runs]

    file = service.home / "fork.yaml"
    forking = ("tasks", "fork", record.task.id, "--from", "report", "-o", str(file))
    code, _, why = await soong(service, *forking)
    assert (code, file.is_file()) == (0, True), why
    assert (await soong(service, *forking))[0] == 2  # it is there already

    fork = await service.submit(file, project=project, callback=answered)
    ended = await service.finished(fork)
    assert ended.status is TaskStatus.COMPLETED, service.logs()
    assert project.joinpath("yes.txt").read_text() == "REPORT"
    results = {
        step.step_id: await service.store.tasks.result(step.key) for step in await service.store.tasks.steps(fork.id)
    }
    assert results["each"].output == record.results[f"{record.task.id}/each"].output
    assert results["end"].output == record.results[f"{record.task.id}/end"].output


# -- what surrounds them
def of(record: TaskRecord, step_id: str) -> tuple[Sequence[Event], dict[str, CallRow]]:
    run_id = next(step.run_id for step in record.steps if step.step_id == step_id)
    run = next(one for one in record.runs if one.run.id == run_id)
    return run.events, {row.tool_call_id: row for row in run.calls}


async def test_hook_results_and_decisions_stand_with_their_authors(record: TaskRecord) -> None:
    events, calls = of(record, "report")
    by_type: dict[str, list[JsonObject]] = {}
    for event in events:
        by_type.setdefault(event.type, []).append(event.data)

    hooks = [(data["hook"], data["stage"], data["outcome"], data["input_diff"]) for data in by_type["hook_run"]]
    assert hooks == [("shout", "pre", "none", {"content": ["report", "REPORT"]})] * 2
    decided = [
        (data["author"], data["principal"], data["choice"], data["reason"]) for data in by_type["permission_decided"]
    ]
    assert decided == [("person", "local", "allow_once", "I said so"), ("person", "local", "deny", "I said so")]
    (started,) = by_type["tool_started"]
    first, second = calls.values()
    assert started["decision_id"] == first.decision_id == by_type["permission_decided"][0]["decision_id"]
    assert first.inputs["model_input"] == {"path": "yes.txt", "content": "report"}
    assert first.inputs["permission_input"] == {"value": {"path": "yes.txt", "content": "REPORT"}}
    assert [row.facts["decision"]["is_allowed"] for row in (first, second)] == [True, False]  # type: ignore[call-overload, index]  # as recorded
    assert [data["error"] for data in by_type["tool_denied"]] == ["permission_denied"]
