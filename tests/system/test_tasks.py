"""Tasks from the command line: pause, cancel, retry and fork; their limits; the children of an ask."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from llmock.scenarios import Delay, Fail, Match, Reply, ToolCall

from soong import Soong, StepStatus, TaskStatus
from soong.shared.core.errors import ConflictError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.step import Outcome
from tests.scripted import call, calls
from tests.system.cli_scene import CliHarness, interrupted, permitting
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment
from tests.system.test_cli_ask import PLANNER, says
from tests.wires.wire import Wires

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
        task = await soong.start(plan)
        await task.update(
            {
                "add_steps": [{"id": "more", **ECHO, "depends_on": ["slow"], "inputs": {"n": "${slow.output.n}"}}],
                "add_dependencies": [{"step": "end", "depends_on": ["more"]}],
                "priorities": {"end": 7},
            }
        )
        await task.pause(reason="lunch")
        paused = await task.wait()
        with pytest.raises(ConflictError, match="a step 'more' already"):
            await task.update({"add_steps": [{"id": "more", **ECHO}]})
        await task.resume()
        outcome = await task.wait()
        await task.retry(from_step="more")
        again = await task.wait()

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
        task = await soong.start({"title": "t", "steps": [WRITER, after]}, project=service.home)
        outcome = await task.wait()

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
    service = cli.up()
    failed = cli.json("run", cli.plan(NO_SUCH_MODEL % "mistral:without-package"))

    resumed = cli.json("resume", "--last", "--model", "script")

    assert failed["exit_code"] == 1
    assert (resumed["id"], resumed["status"]) == (failed["id"], "completed")
    runs = cli.json("runs", "list", "--task", failed["id"])
    assert [run["model"] for run in runs if run["step"]] == ["script", "mistral:without-package"]
    interrupted(service)


LOOK = ToolCall("code__list_dir", {"path": "."})

CHAIN = """
title: chain
limits: {%s}
steps:
  - {id: one, instructions: Look., model: "openai-chat:gpt-4o", allowed_tools: [code.list_dir]}
  - {id: two, depends_on: [one], instructions: Look., model: "openai-chat:gpt-4o", allowed_tools: [code.list_dir]}
  - {id: three, depends_on: [two], kind: python, call: builtin.echo, on_failure: keep}
"""


def step_of(ended: Any, step_id: str) -> Any:
    return next(step for step in ended["steps"] if step["id"] == step_id)


def end_reason(cli: CliHarness, ended: Any, step_id: str) -> str:
    return str(cli.json("runs", "show", step_of(ended, step_id)["run"])["end_reason"])


@pytest.mark.spec("DIS-07.e")
def test_the_model_turns_of_all_runs_of_a_task_are_limited(cli: CliHarness, wires: Wires) -> None:
    wires.will(Reply(tool_calls=(LOOK,)), Reply(text="seen"), Reply(tool_calls=(LOOK,)), Reply(text="seen, too"))
    plan = cli.plan(CHAIN % "max_turns: 3")

    failed = cli.run("run", plan)
    shown = cli.run("tasks", "show", cli.json("tasks", "list")[0]["id"]).stdout
    ended = cli.json("tasks", "show", cli.json("tasks", "list")[0]["id"])
    asked = len(wires.requests)
    again = cli.json("resume", ended["id"])
    more = cli.json("resume", ended["id"], "--limit", "max_turns=10")

    words = "the task has reached its limit max_turns: 3 of 3 model turns are used"
    assert failed.returncode == 1, failed.stderr
    assert words in failed.stdout + failed.stderr
    assert (ended["status"], ended["reason"], asked) == ("failed", words, 3)
    assert [step["status"] for step in ended["steps"]] == ["completed", "failed", "cancelled"]
    assert step_of(ended, "two")["error"] == {"type": "limit_exceeded", "message": words, "retryable": False}
    assert end_reason(cli, ended, "two") == "max_turns"
    assert ended["limits"]["max_turns"] == {"limit": 3, "used": 3}
    assert "limits: max_turns 3 of 3" in shown
    assert f"resume {ended['id']} --limit max_turns=…" in shown
    assert (again["status"], again["reason"]) == ("failed", words), "what was used stays used"
    assert (more["status"], more["limits"]["max_turns"]) == ("completed", {"limit": 10, "used": 4})


@pytest.mark.spec("DIS-07.h")
def test_the_time_of_a_task_is_limited(cli: CliHarness) -> None:
    plan = """
title: time
limits: {wall_s: 2}
steps:
  - {id: one, kind: python, call: builtin.sleep, inputs: {seconds: 60}}
  - {id: two, depends_on: [one], kind: python, call: builtin.echo}
"""
    ended = cli.json("run", cli.plan(plan))

    words = "the task has reached its limit wall_s: its 2 s have passed"
    assert (ended["status"], ended["exit_code"], ended["reason"]) == ("failed", 1, words)
    assert (step_of(ended, "one")["error"]["type"], end_reason(cli, ended, "one")) == ("limit_exceeded", "time_limit")
    assert step_of(ended, "two")["status"] == "cancelled"
    assert 2 <= ended["limits"]["wall_s"]["used"] < 30


def test_the_turns_of_scripted_agents_count_and_a_limit_that_is_not_reached_ends_nothing(cli: CliHarness) -> None:
    plan = """
title: scripts
limits: {max_turns: %s, tokens: 1, cost_usd: 0.000001, wall_s: 600}
steps:
  - id: map
    kind: map
    over: [a, b]
    step:
      script: builtin.calls
      allowed_tools: [code.list_dir]
      inputs: {calls: [{call: code.list_dir, with: {path: .}}]}
"""
    few, enough = cli.json("run", cli.plan(plan % 3)), cli.json("run", cli.plan(plan % 4))

    assert (few["status"], few["limits"]["max_turns"]["used"]) == ("failed", 3)
    assert "its limit max_turns:" in few["reason"]
    assert (enough["status"], enough["limits"]["max_turns"]["used"]) == ("completed", 4)
    assert (enough["limits"]["tokens"]["used"], enough["limits"]["cost_usd"]["used"]) == (0, 0)


SLOW, BROKEN = "openai-chat:gpt-5-mini", "openai-chat:gpt-4o"

SLOW_S = 3

CALL_ENDS = frozenset({"tool_completed", "tool_denied", "tool_failed"})


def permit(cli: CliHarness, *models: str) -> None:
    """List models that agents may choose in the configuration."""
    cli.home.mkdir(parents=True, exist_ok=True)
    with (cli.home / "config.toml").open("a") as file:
        file.write(permitting(*models))


@pytest.mark.spec("CARD-1.c", "EXE-03.b", "EXE-04.d", "EXE-04.f", "EXE-08.e", "REG-07.c")
def test_one_that_fails_and_one_that_is_denied_leave_the_others_and_all_are_told(cli: CliHarness, wires: Wires) -> None:
    permit(cli, SLOW, BROKEN)
    hook = cli.home / "no-forks.sh"
    hook.write_text("""#!/bin/sh\nprintf '{"action": "deny", "reason": "no forks today"}'\n""")
    hook.chmod(0o755)
    with (cli.home / "config.toml").open("a") as file:
        file.write(f'[[hooks.pre]]\nname = "no-forks"\ntools = "agent.fork_agent"\ncommand = ["{hook}"]\n')
    # Agents take longer than any tool may: their own limits end them.
    cli.environment |= {"SOONG_TOOL_TIMEOUT_MS": "500", "SOONG_TOOL_MAX_TIMEOUT_MS": "500"}
    calls = (
        ToolCall("agent__dispatch_worker", {"instructions": "Take your time.", "model": SLOW}),
        ToolCall("agent__create_sub_agent", {"instructions": "Fail.", "model": BROKEN}),
        ToolCall("agent__fork_agent", {"instructions": "Look aside."}),
        ToolCall("agent__dispatch_worker", {"instructions": "Take your time, too.", "model": SLOW}),
    )
    wires.will(
        Reply(tool_calls=calls, match=Match(model="gpt-5")),
        Fail(status=401, match=Match(model="gpt-4o")),
        Delay(seconds=SLOW_S, match=Match(model="gpt-5-mini")),
        Reply(text="slow but done", match=Match(model="gpt-5-mini"), times=2),
        Reply(text="Two of four.", match=Match(model="gpt-5")),
    )

    ended = cli.json("ask", "Do four things.", "--model", PLANNER)

    assert ended["answer"] == "Two of four."
    asked = [one for one in wires.requests if one.body["model"] == "gpt-5"]
    told = {one["tool_call_id"]: one["content"] for one in asked[-1].body["messages"] if one["role"] == "tool"}
    first, second, third, fourth = told.values()
    assert ("slow but done" in first, "slow but done" in fourth) == (True, True)
    assert ("provider_failed" in second, list(json.loads(second))) == (True, ["error"])
    assert "no forks today" in third
    assert len(asked) == 2
    runs = [run for run in cli.json("runs", "list", "--task", ended["id"]) if run["step"]]
    slow = [run for run in runs if run["model"] == SLOW]
    assert len(runs) == 3
    assert max(run["started"] for run in runs) < min(run["ended"] for run in slow)
    (root,) = (run for run in cli.json("runs", "list", "--task", ended["id"]) if not run["step"])
    types = [one["type"].removeprefix("soong.") for one in cli.json("runs", "tail", root["id"])]
    ends = sorted(one for one in types if one in CALL_ENDS)
    assert ends == ["tool_completed", "tool_completed", "tool_denied", "tool_failed"]
    assert root["worker"].startswith("own_")
    assert {run["worker"].partition("_")[0] for run in runs} == {"wrk"}


@pytest.mark.spec("DIS-06", "DAG-03.f")
def test_a_planner_hears_of_a_failed_step_while_others_run_and_can_wait_for_these(
    cli: CliHarness, wires: Wires
) -> None:
    permit(cli, SLOW, BROKEN)
    steps = [
        {"id": "hopeless", "instructions": "Do what cannot be done.", "model": BROKEN},
        {"id": "slow", "instructions": "Take your time.", "model": SLOW},
    ]
    wires.will(
        says("gpt-5", ToolCall("agent__task_create", {"title": "two", "steps": steps})),
        says("gpt-4o", ToolCall("agent__task_update_step", {"failure": "nobody can do this"})),
        Delay(seconds=SLOW_S, match=Match(model="gpt-5-mini")),
        Reply(text="slow but done", match=Match(model="gpt-5-mini")),
        says("gpt-5", ToolCall("agent__dispatch_worker", {})),
        says("gpt-5", ToolCall("agent__dispatch_worker", {"leave_failed": ["hopeless"]})),
        says("gpt-5", ToolCall("agent__task_complete", {})),
        Reply(text="One of two.", match=Match(model="gpt-5")),
    )

    ended = cli.json("ask", "Do two things.", "--model", PLANNER)

    asked = [one for one in wires.requests if one.body["model"] == "gpt-5"]
    told = [one["content"] for one in asked[-1].body["messages"] if one["role"] == "tool"]
    failed, rest = (json.loads(json.loads(one)["error"].splitlines()[-1]) for one in told[1:3])
    assert [(one["id"], one["status"]) for one in failed["steps"]] == [("hopeless", "failed"), ("slow", "running")]
    assert "nobody can do this" in told[1]
    assert [(one["id"], one["status"]) for one in rest["steps"]] == [("hopeless", "failed"), ("slow", "completed")]
    hopeless = next(step for step in ended["steps"] if step["id"] == "hopeless")
    assert (hopeless["error"]["type"], hopeless["error"]["message"]) == ("failed", "nobody can do this")
    assert len([one for one in wires.requests if one.body["model"] == "gpt-4o"]) == 1


@pytest.mark.spec("DIS-02.b")
def test_a_child_has_the_model_of_its_call_of_its_definition_or_of_its_parent(cli: CliHarness, wires: Wires) -> None:
    (cli.home / "agents").mkdir(parents=True)
    permit(cli, BROKEN)
    (cli.home / "agents/thinker.md").write_text(f"---\ndescription: Thinks.\nmodel: {SLOW}\n---\nYou think.")
    calls = (
        ToolCall("agent__create_sub_agent", {"title": "of its call", "instructions": "A", "model": BROKEN}),
        ToolCall(
            "agent__create_sub_agent", {"title": "of both", "instructions": "B", "model": BROKEN, "agent": "thinker"}
        ),
        ToolCall("agent__create_sub_agent", {"title": "of its definition", "instructions": "C", "agent": "thinker"}),
        ToolCall("agent__create_sub_agent", {"title": "of its parent", "instructions": "D"}),
    )
    wires.will(
        Reply(tool_calls=calls, match=Match(model="gpt-5")),
        Reply(text="done", match=Match(model="gpt-4o"), times=2),
        Reply(text="done", match=Match(model="gpt-5-mini")),
        Reply(text="done", match=Match(model="gpt-5"), times=2),
    )

    ended = cli.json("ask", "Ask four.", "--model", PLANNER)

    runs = [run for run in cli.json("runs", "list", "--task", ended["id"]) if run["step"]]
    titles = {step["id"]: step["title"] for step in cli.json("tasks", "show", ended["id"])["steps"]}
    assert {titles[run["step"]]: run["model"] for run in runs} == {
        "of its call": BROKEN,
        "of both": BROKEN,
        "of its definition": SLOW,
        "of its parent": PLANNER,
    }


def test_a_model_that_nobody_but_the_agent_chose_gets_neither_a_child_nor_the_conversation(
    cli: CliHarness, wires: Wires
) -> None:
    other, strange = "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5"
    permit(cli, other)
    step = {"id": "s", "instructions": "A", "model": strange}
    each = {"id": "m", "kind": "map", "over": [1], "as": "n", "step": {"instructions": "A", "model": strange}}
    calls = (
        ToolCall("agent__create_sub_agent", {"instructions": "A", "model": strange}),
        ToolCall("agent__dispatch_worker", {"instructions": "A", "model": strange}),
        ToolCall("agent__fork_agent", {"instructions": "A", "model": other}),
        ToolCall("agent__task_create", {"title": "t", "steps": [step]}),
        ToolCall("agent__task_create", {"title": "t", "steps": [each]}),
        ToolCall("agent__task_create", {"title": "t", "model": strange, "steps": [{"id": "s", "instructions": "A"}]}),
        ToolCall("agent__fork_agent", {"instructions": "A", "model": PLANNER}),
    )
    wires.will(
        Reply(tool_calls=calls, match=Match(model="gpt-5"), times=1),
        Reply(text="of a fork", match=Match(model="gpt-5"), times=1),
        Reply(text="Nothing left.", match=Match(model="gpt-5"), times=1),
    )

    ended = cli.json("ask", "Ask others.", "--model", PLANNER)

    told = [one["content"] for one in wires.requests[-1].body["messages"] if one["role"] == "tool"]
    refused = f"agents may not choose the model '{strange}'"
    assert [refused in one for one in told] == [True, True, False, True, True, True, False]
    assert f"{PLANNER}, {other}" in told[0]
    assert "a fork takes your conversation along" in told[2]
    assert "of a fork" in told[6]
    assert [run["model"] for run in cli.json("runs", "list", "--task", ended["id"])] == [PLANNER, PLANNER]
