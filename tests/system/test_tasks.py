import json
from collections.abc import Mapping

import pytest

from soong import Soong, StepStatus, TaskStatus
from soong.shared.core.errors import ConflictError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.step import Outcome
from tests.scripted import call, calls
from tests.system.cli_scene import CliHarness, interrupted
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment

SCENE = {"is_warm": True}

pytestmark = pytest.mark.timeout(180)

PLAN = """
title: Chain
steps:
  - {id: list, kind: python, call: builtin.echo, inputs: {names: [x, y]}}
  - id: each
    kind: map
    over: ${list.output.names}
    as: name
    depends_on: [list]
    step: {kind: python, call: builtin.echo, inputs: {hello: "${name}"}}
  - {id: end, kind: python, call: builtin.echo, depends_on: [each], inputs: {all: "${each.output}"}}
  - {id: other, kind: python, call: builtin.echo, inputs: {x: 1}}
"""


@pytest.mark.spec("DAG-08.e", "DAG-07")
def test_a_completed_task_is_run_again_from_a_step_on_the_command_line(cli: CliHarness) -> None:
    first = cli.json("run", cli.plan(PLAN))
    steps = {step["id"]: step for step in first["steps"]}

    again = cli.json("tasks", "retry", first["id"], "--from", "each")

    after = {step["id"]: step for step in again["steps"]}
    assert (again["id"], again["status"], again["exit_code"]) == (first["id"], "completed", 0)
    assert after.keys() == steps.keys()
    assert after["end"]["output"] == {"all": [{"hello": "x"}, {"hello": "y"}]}
    assert [after[name]["attempt"] for name in ("list", "other", "end")] == [1, 1, 2]
    assert {name: after[name]["run"] == steps[name]["run"] for name in ("list", "other", "each[x]")} == {
        "list": True,
        "other": True,
        "each[x]": False,
    }
    refused = cli.run("tasks", "retry", first["id"])
    assert refused.returncode != 0
    assert "name the step to run it again from" in refused.stderr
    over = cli.run("tasks", "cancel", first["id"])
    assert over.returncode == 1
    assert "it is over" in over.stderr
    unknown = cli.run("tasks", "retry", first["id"], "--from", "nowhere")
    assert unknown.returncode == 2
    assert "nowhere" in unknown.stderr
    cli.assert_nothing_left()


@pytest.mark.spec("EVT-02", "DAG-08.c")
def test_a_run_is_followed_from_any_event_and_a_task_is_drawn_as_it_is(cli: CliHarness) -> None:
    done = cli.json("run", cli.plan(PLAN))
    run = f"{done['id']}/end"

    whole = cli.json("runs", "tail", run)
    rest = cli.json("runs", "tail", run, "--from", "4")
    followed = cli.run("runs", "tail", run, "--from", "4", "--follow", "--json")
    drawn = cli.run("tasks", "graph", done["id"]).stdout
    picture = cli.run("tasks", "graph", done["id"], "--format", "svg").stdout

    assert [event["id"] for event in whole] == [str(number) for number in range(1, len(whole) + 1)]
    assert rest == whole[3:]
    assert [json.loads(line) for line in followed.stdout.splitlines()] == rest
    assert "class s2 done" in drawn
    assert picture.startswith("<svg")
    assert "end (completed)" in picture
    schema = json.loads(cli.run("tasks", "schema").stdout)
    assert schema["title"] == "Plan"


ECHO: Mapping[str, Json] = {"kind": "python", "call": "builtin.echo"}


@pytest.mark.spec("DAG-01", "OPS-04.b")
@ON_POSTGRES
async def test_a_program_grows_pauses_and_steers_a_task(service: Deployment) -> None:
    await service.start_workers(1)
    plan: Mapping[str, Json] = {
        "title": "t",
        "steps": [
            {"id": "slow", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 1, "n": 1}},
            {"id": "end", **ECHO, "depends_on": ["slow"], "inputs": {"late": 1}},
        ],
    }
    async with Soong.connect(service.database_url, service.redis_url, agent_home=service.settings.home) as soong:
        task_id = await soong.submit(plan)
        await soong.update(
            task_id,
            {
                "add_steps": [{"id": "more", **ECHO, "depends_on": ["slow"], "inputs": {"n": "${slow.output.n}"}}],
                "add_dependencies": [{"step": "end", "depends_on": ["more"]}],
                "priorities": {"end": 7},
            },
        )
        await soong.pause(task_id, reason="lunch")
        paused = await soong.wait(task_id)
        with pytest.raises(ConflictError, match="a step 'more' already"):
            await soong.update(task_id, {"add_steps": [{"id": "more", **ECHO}]})
        await soong.resume(task_id)
        outcome = await soong.wait(task_id)
        await soong.retry(task_id, from_step="more")
        again = await soong.wait(task_id)

    assert paused.status is TaskStatus.PAUSED
    assert outcome.status is again.status is TaskStatus.COMPLETED
    assert outcome.outputs["more"] == {"n": 1}
    attempts = {step.id: step.attempt for step in again.steps}
    assert attempts == {"slow": 1, "more": 2, "end": 2}
    assert {step.status for step in again.steps} == {StepStatus.COMPLETED}


WRITER: Mapping[str, Json] = {
    "id": "write",
    "allowed_tools": ["code.write_file", "code.run_command"],
    **calls(call("code.write_file", path="note.txt", content="x"), output={"ok": False}),
}


@pytest.mark.spec("DAG-10.b")
@ON_SQLITE
async def test_a_partial_step_lists_its_denials_and_the_tools_it_asked_for_and_got(service: Deployment) -> None:
    """anthropics/claude-code#32402: denials were no part of the result; vastsa/PI-Desktop#215: nor what was granted."""
    await service.start_workers(1)
    after: Mapping[str, Json] = {
        "id": "after",
        **ECHO,
        "depends_on": ["write"],
        "inputs": {"denied": "${write.denials[0].type}", "how": "${write.outcome}"},
    }
    async with Soong.connect(service.database_url, service.redis_url, agent_home=service.settings.home) as soong:
        task_id = await soong.submit({"title": "t", "steps": [WRITER, after]}, project=service.home)
        outcome = await soong.wait(task_id)

    write, told = outcome.steps
    assert (write.status, write.outcome) == (StepStatus.COMPLETED, Outcome.PARTIAL)
    assert write.tools == {"requested": ["code.write_file", "code.run_command"], "granted": ["code.write_file"]}
    assert [entry["tool"] for entry in write.denials] == ["code.write_file"]
    assert write.unknown_effects == []
    assert (told.output, told.tools) == ({"denied": "permission_no_callback", "how": "partial"}, None)


NO_SUCH_MODEL = """
title: A model that fails
steps:
  - id: look
    model: %s
    instructions: Say done.
    script: builtin.echo
"""


@pytest.mark.spec("DAG-08.d", "DIS-08")
def test_the_last_failed_task_is_resumed_on_another_model(cli: CliHarness) -> None:
    # A service that lives may have packages and keys that this command has not: it is not refused here.
    service = cli.up_warm()
    failed = cli.json("run", cli.plan(NO_SUCH_MODEL % "mistral:without-package"))

    resumed = cli.json("resume", "--last", "--model", "script")

    assert failed["exit_code"] == 1
    assert (resumed["id"], resumed["status"]) == (failed["id"], "completed")
    runs = cli.json("runs", "list", "--task", failed["id"])
    assert [run["model"] for run in runs if run["step"]] == ["script", "mistral:without-package"]
    interrupted(service)
