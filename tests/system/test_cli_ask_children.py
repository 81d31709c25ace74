"""Several agents started in one turn: they run at once, and each end is its own."""

import json

import pytest
from llmock.scenarios import Delay, Fail, Match, Reply, ToolCall

from tests.system.cli_scene import CliHarness, permitting
from tests.wires.wire import Wires

SCENE = {"is_warm": True}

PLANNER = "openai-chat:gpt-5"
SLOW, BROKEN = "openai-chat:gpt-5-mini", "openai-chat:gpt-4o"
SLOW_S = 3
CALL_ENDS = frozenset({"tool_completed", "tool_denied", "tool_failed"})


def permit(cli: CliHarness, *models: str) -> None:
    """List models that agents may choose in the configuration."""
    cli.home.mkdir(parents=True, exist_ok=True)
    with (cli.home / "config.toml").open("a") as file:
        file.write(permitting(*models))


def refuse_forks(cli: CliHarness) -> None:
    """Have a hook of the configuration deny each call of agent.fork_agent."""
    cli.home.mkdir(parents=True, exist_ok=True)
    hook = cli.home / "no-forks.sh"
    hook.write_text("""#!/bin/sh\nprintf '{"action": "deny", "reason": "no forks today"}'\n""")
    hook.chmod(0o755)
    entry = f'[[hooks.pre]]\nname = "no-forks"\ntools = "agent.fork_agent"\ncommand = ["{hook}"]\n'
    (cli.home / "config.toml").write_text(entry)


@pytest.mark.spec("CARD-1.c", "EXE-03.b", "EXE-04.d", "EXE-04.f", "EXE-08.e", "REG-07.c")
def test_one_that_fails_and_one_that_is_denied_leave_the_others_and_all_are_told(cli: CliHarness, wires: Wires) -> None:
    refuse_forks(cli)
    permit(cli, SLOW, BROKEN)
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
        _says("gpt-5", ToolCall("agent__task_create", {"title": "two", "steps": steps})),
        _says("gpt-4o", ToolCall("agent__task_update_step", {"failure": "nobody can do this"})),
        Delay(seconds=SLOW_S, match=Match(model="gpt-5-mini")),
        Reply(text="slow but done", match=Match(model="gpt-5-mini")),
        _says("gpt-5", ToolCall("agent__dispatch_worker", {})),
        _says("gpt-5", ToolCall("agent__dispatch_worker", {"leave_failed": ["hopeless"]})),
        _says("gpt-5", ToolCall("agent__task_complete", {})),
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


def _says(model: str, call: ToolCall) -> Reply:
    return Reply(tool_calls=(call,), match=Match(model=model))


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
