"""``soong run`` with real providers' clients in the workers, over the wires of a server that is not ours."""

import json
import time
from pathlib import Path

import pytest
from llmock.scenarios import Fail, Match, Reply, ToolCall

from soong.shared.agents.compaction import LEFT_OUT
from tests.system.cli_scene import CliHarness
from tests.wires.wire import MODELS, Wires

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = """
title: look
steps:
  - {id: look, instructions: "Say what is in this folder.", model: "%s", allowed_tools: [code.list_dir]}
"""


@pytest.mark.spec("REG-04", "DIS-05.a")
@pytest.mark.parametrize("wire", ["openai-chat", "anthropic", "google"])
def test_a_worker_speaks_the_providers_wire(cli: CliHarness, wires: Wires, wire: str) -> None:
    wires.will(Reply(tool_calls=(ToolCall("code__list_dir", {"path": "."}),)), Reply(text="one plan"))

    ended = cli.json("run", cli.plan(PLAN % MODELS[wire]))

    (step,) = ended["steps"]
    assert (step["status"], step["outcome"], step["output"]) == ("completed", "clean", "one plan")
    told = wires.requests[-1].body
    assert "plan.yaml" in str(told)
    wires.verdict.assert_ok(strict=True)
    assert cli.json("replay", ended["id"])["is_same"] is True


DEFINITION = """---
description: Looks into folders.
model: %s
suggested_tools: [code.list_dir]
limits: {max_turns: 1}
temperature: 0.5
max_tokens: 321
---
You look into folders, and nothing else.
"""
PLAIN = "openai-chat:gpt-4o"
"""A model that takes a temperature; those that think do not."""
BY_DEFINITION = "title: look\nsteps: [{id: look, instructions: What is here?, agent: looker}]\n"


@pytest.mark.spec("DIS-02.b", "DIS-07.a")
def test_a_users_definition_says_what_the_agent_is_and_how_its_model_is_asked(cli: CliHarness, wires: Wires) -> None:
    call = ToolCall("code__list_dir", {"path": "."})
    wires.will(Reply(text="a plan"), Reply(tool_calls=(call,), times=None))
    (cli.home / "agents").mkdir(parents=True)
    (cli.home / "agents" / "looker.md").write_text(DEFINITION % PLAIN)
    plan = cli.plan(BY_DEFINITION)

    first, second = cli.json("run", plan), cli.json("run", plan)

    assert (first["steps"][0]["output"], first["steps"][0]["status"]) == ("a plan", "completed")
    assert second["steps"][0]["error"]["type"] == "max_turns"
    body = wires.requests[0].body
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("gpt-4o", 0.5, 321)
    assert "You look into folders, and nothing else." in str(body["messages"][0])
    assert [tool["function"]["name"] for tool in body["tools"]] == ["code__list_dir"]
    run = cli.json("runs", "list", "--task", first["id"])[0]
    assert (run["definition"], run["model"]) == ("looker", PLAIN)


@pytest.mark.spec("DIS-12.c")
def test_the_configuration_says_how_much_a_model_reads_and_what_is_left_out(cli: CliHarness, wires: Wires) -> None:
    look = ToolCall("code__list_dir", {"path": "."})
    wires.will(Reply(tool_calls=(look,)), Reply(tool_calls=(look,)), Reply(text="the same twice"))
    cli.home.mkdir(parents=True, exist_ok=True)
    sections = '[context]\ncompaction = "drop_results"\n[context.windows]\n"openai-chat:*" = 1500\n'
    (cli.home / "config.toml").write_text(sections)
    plan = cli.plan(PLAN % MODELS["openai-chat"])
    for number in range(60):
        (cli.folder / f"a-file-with-a-long-name-{number}.txt").touch()

    ended = cli.json("run", plan)

    assert ended["steps"][0]["output"] == "the same twice"
    first, second = (message for message in wires.requests[-1].body["messages"] if message["role"] == "tool")
    assert (first["content"], "a-file-with-a-long-name-59" in second["content"]) == (LEFT_OUT, True)
    events = cli.run("runs", "tail", ended["steps"][0]["run"], "--json").stdout
    assert events.count('"soong.context_compacted"') == 1


@pytest.mark.spec("DIS-09")
@pytest.mark.parametrize("place", ["definition", "configuration"])
def test_a_step_continues_on_the_fallback_where_its_provider_refuses(cli: CliHarness, wires: Wires, place: str) -> None:
    named, first = MODELS["anthropic"], PLAIN
    wires.will(Fail(401, times=None, match=Match(model="gpt-4o")))
    wires.will(Reply(tool_calls=(ToolCall("code__list_dir", {"path": "."}),)), Reply(text="a plan"))
    (cli.home / "agents").mkdir(parents=True)
    text = DEFINITION.replace("limits: {max_turns: 1}\n", "") % first
    if place == "definition":
        text = text.replace("temperature", f"fallback_models: [{named}]\ntemperature")
    else:
        (cli.home / "config.toml").write_text(f'[models."openai-chat:*"]\nfallback = ["{named}"]\n')
    (cli.home / "agents" / "looker.md").write_text(text)

    ended = cli.json("run", cli.plan(BY_DEFINITION))

    (step,) = ended["steps"]
    assert (step["status"], step["output"]) == ("completed", "a plan")
    assert [(one.provider, one.status) for one in wires.requests] == [
        ("openai", 401),
        ("anthropic", 200),
        ("anthropic", 200),
    ]
    events = cli.run("runs", "tail", step["run"], "--json").stdout
    assert events.count('"soong.model_fallback"') == 1
    used = cli.json("usage", "--by", "model")
    assert [one["key"] for one in used] == [named]


@pytest.mark.spec("DIS-12.d")
def test_a_pause_that_a_person_lifts_is_over_in_the_service(cli: CliHarness, wires: Wires) -> None:
    wires.will(Fail(429, retry_after=300), Reply(text="done"))
    running = cli.start("run", cli.plan(PLAN % PLAIN), "--json")
    end_s = time.monotonic() + 60
    while not (paused := cli.json("models", "paused")["paused"]):
        assert time.monotonic() < end_s, cli.logs()

    lifted = cli.run("models", "resume", PLAIN)
    ended = json.loads(running.communicate(timeout=30)[0])

    assert [one["model"] for one in paused] == [PLAIN]
    assert (lifted.returncode, ended["steps"][0]["output"]) == (0, "done")
    assert cli.run("models", "resume").returncode == 2


TWO = """
title: two
steps:
  - {id: first, instructions: "Say one.", model: "openai-chat:gpt-5", allowed_tools: [code.list_dir]}
  - {id: second, instructions: "Say two.", model: "openai-chat:gpt-5", allowed_tools: [code.list_dir]}
"""
ASKED_S = 4


@pytest.mark.spec("DIS-09", "DIS-11.c", "DIS-12.d")
def test_all_processes_wait_as_long_as_the_provider_asked_one_of_them(cli: CliHarness, wires: Wires) -> None:
    look = ToolCall("code__list_dir", {"path": "."})
    # Each of two workers makes a call; the first request after them is refused.
    wires.will(Reply(tool_calls=(look,)), Reply(tool_calls=(look,)), Reply(text="done", times=None))
    wires.will(Fail(429, retry_after=ASKED_S))

    cli.environment |= {"SOONG_WORKERS": "2", "SOONG_SLOTS": "1"}
    ended = cli.json("run", cli.plan(TWO))

    assert [step["output"] for step in ended["steps"]] == ["done", "done"]
    assert len({step["worker"] for step in ended["steps"]}) == 2
    refused = next(one for one in wires.requests if one.status == 429)
    later = [one.started_at - refused.started_at for one in wires.requests if one.started_at > refused.started_at]
    too_early = [seconds for seconds in later if 0.5 < seconds < ASKED_S - 0.1]
    assert (too_early, len(wires.requests)) == ([], 5)
    wires.verdict.assert_ok()


WAITING = """
title: waiting
steps:
  - {id: asks, instructions: "Say one.", model: "openai-chat:gpt-5", allowed_tools: [code.list_dir]}
  - {id: plain, kind: python, call: builtin.echo, inputs: {said: hello}}
"""


@pytest.mark.spec("DIS-09", "DIS-12.d")
def test_a_worker_does_other_steps_while_a_provider_makes_one_wait(cli: CliHarness, wires: Wires) -> None:
    cli.environment |= {"SOONG_PARK_AFTER_S": "1", "SOONG_SLOTS": "1"}
    wires.will(Fail(429, retry_after=ASKED_S), Reply(text="done"))

    ended = cli.json("run", cli.plan(WAITING))

    asks, plain = ended["steps"]
    assert (asks["output"], asks["status"], plain["status"]) == ("done", "completed", "completed")
    asked, told = (cli.json("runs", "tail", step["run"]) for step in (asks, plain))
    waits = [one for one in asked if one["type"] == "soong.model_waiting"]
    assert [one["data"]["seconds"] for one in waits] == [ASKED_S]
    started = next(one for one in told if one["type"] == "soong.run_started")
    assert waits[0]["time"] < started["time"] < told[-1]["time"] < asked[-1]["time"]


@pytest.mark.spec("DIS-09")
def test_a_plan_mixes_functions_scripts_and_a_model(cli: CliHarness, wires: Wires) -> None:
    wires.will(Reply(text='{"said": "One file."}', times=None))
    (cli.folder / "a.py").touch()

    cli.serve_with("mixed", EXAMPLES)
    ended = cli.json("run", str(EXAMPLES / "mixed.yaml"), "--model", PLAIN)

    look, tally, tell = ended["steps"]
    assert (tally["output"], tell["output"]) == ({"kinds": {".py": 1}, "bytes": 0}, {"said": "One file."})
    assert look["output"]["files"] == [{"path": "a.py", "bytes": 0}]
    models = {run["step"]: run["model"] for run in cli.json("runs", "list", "--task", ended["id"])}
    assert (models["look"], models["tell"], len(wires.requests)) == ("script", PLAIN, 1)


@pytest.mark.spec("DIS-09")
def test_a_command_a_step_and_a_definition_say_how_a_model_is_asked(cli: CliHarness, wires: Wires) -> None:
    settings = "{temperature: 1, max_tokens: 9}"
    step = f"title: look\nsteps: [{{id: look, instructions: Look., agent: looker, settings: {settings}}}]"
    wires.will(Reply(text="seen", times=None))
    (cli.home / "agents").mkdir(parents=True)
    (cli.home / "agents" / "looker.md").write_text(DEFINITION % PLAIN)

    plan = cli.plan(step)
    ended = cli.json("run", plan, "--setting", "temperature=0.25", "--setting", "parallel_calls=false")
    asked = cli.json("ask", "Look.", "--agent", "looker", "--model", PLAIN, "--setting", "max_tokens=77")
    refused = cli.run("ask", "Look.", "--model", PLAIN, "--setting", "max_token=77")

    ran, answered = (one.body for one in wires.requests)
    assert (ran["temperature"], ran["max_completion_tokens"], ran["parallel_tool_calls"]) == (0.25, 9, False)
    assert (answered["temperature"], answered["max_completion_tokens"]) == (0.5, 77)
    set_here = {"temperature": 0.25, "max_tokens": 9, "parallel_calls": False}
    assert cli.json("runs", "show", ended["steps"][0]["run"])["settings"] == set_here
    assert asked["answer"] == "seen"
    assert (refused.returncode, "did you mean 'max_tokens'" in refused.stderr) == (2, True)
