"""Agents of other libraries in a deployment of real processes: killed in mid-turn, gone on with elsewhere (BYO-01)."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmock.scenarios import Match, Reply, ToolCall
from llmock.testing import LLMockServer

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Outcome
from tests.system.cli_scene import CliHarness
from tests.system.deployment import ROOT, Deployment
from tests.wires.wire import Wires

MODES = ("request", "look", "change", "output")
"""Where the process of a run is killed."""


@pytest.fixture
def models() -> Iterator[Wires]:
    with LLMockServer() as server:
        yield Wires(server)


def replies(mode: str) -> tuple[Reply, ...]:
    said = (
        Reply(tool_calls=(ToolCall("look", {}), ToolCall("code__list_dir", {"path": "."}))),
        Reply(tool_calls=(ToolCall("change", {}),)),
        Reply(text="nothing"),
        Reply(text="done"),
    )
    return tuple(Reply(one.text, one.tool_calls, match=Match(model=f"gpt-{mode}")) for one in said)


@pytest.mark.spec("BYO-01.a", "BYO-01.b", "BYO-01.c")
async def test_killed_in_mid_turn_an_agent_goes_on(service: Deployment, models: Wires, tmp_path: Path) -> None:
    for mode in MODES:
        models.will(*replies(mode))
    environment = {
        **models.environment,
        "OWN_AGENT_FOLDER": str(tmp_path),
        "SOONG_FUNCTIONS": "tests.system.own_agents",
    }
    await service.start_workers(len(MODES) + 1, slots=1, **environment)
    steps: list[JsonObject] = [
        {
            "id": mode,
            "agent": "python:tests.mortal",
            "model": f"openai-chat:gpt-{mode}",
            "instructions": "Look, then change it.",
            "allowed_tools": ["code.list_dir"],
            "inputs": {"mode": mode},
        }
        for mode in MODES
    ]
    plan: JsonObject = {"title": "t", "limits": {"max_turns": 100, "tokens": 10**6}, "steps": steps}

    task = await service.submit(plan, allow=("tests.mortal.*:exact:tests.mortal",), project=tmp_path)
    ended = await service.finished(task)

    assert ended.status is TaskStatus.COMPLETED, service.logs()
    rows = await service.steps(task)
    outputs = {mode: (await service.store.tasks.result(rows[mode].key)).output for mode in MODES}
    assert outputs == dict.fromkeys(MODES, "done")
    assert {rows[mode].lost_leases for mode in MODES} == {1}
    assert {mode for mode in MODES if rows[mode].outcome is Outcome.PARTIAL} == {"change"}
    effects = (tmp_path / "effects.txt").read_text().split("\n")
    assert {mode: effects.count(f"change {mode}") for mode in MODES} == dict.fromkeys(MODES, 1)
    assert {mode: effects.count(f"look {mode}") for mode in MODES} == {**dict.fromkeys(MODES, 1), "look": 2}
    (state,) = (await service.store.budgets.budgets([task_scope(task.id)], day=utc_date(0))).values()
    assert (state.used.turns, state.reserved.tokens) == (4 * len(MODES), 0)
    asked = [record.model for record in models.requests]
    assert {mode: asked.count(f"gpt-{mode}") for mode in MODES} == dict.fromkeys(MODES, 4)


REVIEW: JsonObject = {"owner": "core", "findings": ["nothing is checked"]}
TICKET: JsonObject = {"team": "core", "number": 7}
EXAMPLES = {
    "reviewer": (
        Reply(
            tool_calls=(ToolCall("owner_of", {"path": "a.py"}), ToolCall("code__read_file", {"path": "reviewer.py"}))
        ),
        Reply(tool_calls=(ToolCall("file_issue", {"title": "nothing is checked here"}),)),
        Reply(tool_calls=(ToolCall("final_result", dict(REVIEW)),)),
    ),
    "triage": (
        Reply(tool_calls=(ToolCall("team_of", {"path": "a.py"}),)),
        Reply(tool_calls=(ToolCall("transfer_to_filer", {}),)),
        Reply(tool_calls=(ToolCall("file_ticket", {"title": "always 7"}),)),
        Reply(text=json.dumps(TICKET)),
    ),
    "graph": (Reply(tool_calls=(ToolCall("owner_of", {"path": "a.py"}),)), Reply(text="core")),
}


@pytest.mark.spec("BYO-01", "BYO-02.a", "BYO-02.b")
@pytest.mark.parametrize(("name", "output"), [("reviewer", REVIEW), ("triage", TICKET), ("graph", "core")])
def test_each_example_runs_with_its_agent_as_it_is(cli: CliHarness, wires: Wires, name: str, output: Json) -> None:
    for file in (f"{name}.py", f"{name}.yaml"):
        shutil.copy(ROOT / "examples" / "agents" / file, cli.folder)
    wires.will(*EXAMPLES[name])

    checked = cli.run("tasks", "validate", f"{name}.yaml")
    cli.serve_with(name)
    done = cli.json("run", f"{name}.yaml", "--allow", f"team.{name}.*:exact:team.{name}")

    assert checked.returncode == 0, checked.stderr
    (step,) = done["steps"]
    assert (step["outcome"], step["output"]) == ("clean", output)
    assert "core owns a.py" in str(wires.requests[1].body)


@pytest.mark.spec("BYO-01")
def test_a_plan_with_an_unknown_agent_says_which_there_are(cli: CliHarness) -> None:
    shutil.copy(ROOT / "examples" / "agents" / "reviewer.py", cli.folder)
    steps = "[{id: a, agent: 'python:team.reviewr', instructions: x}, {id: b, agent: 'python:team.reviewer'}]"
    plan = cli.plan(f"title: t\nmodules: [reviewer]\nsteps: {steps}\n")

    told = cli.run("tasks", "validate", plan)

    assert told.returncode != 0
    assert "no agent is registered as 'team.reviewr'; did you mean 'team.reviewer'?" in told.stderr
    assert "the step does not say what to do; add `instructions:` or `inputs:` for your agent" in told.stderr


@pytest.mark.spec("BYO-01", "LOG-01.f", "PER-14")
def test_a_denied_call_names_the_rule_that_allows_it_and_the_run_shows_what_the_agent_has(
    cli: CliHarness, wires: Wires
) -> None:
    for file in ("reviewer.py", "reviewer.yaml"):
        shutil.copy(ROOT / "examples" / "agents" / file, cli.folder)
    wires.will(*EXAMPLES["reviewer"], *EXAMPLES["reviewer"])
    cli.serve_with("reviewer")

    denied = cli.json("run", "reviewer.yaml")["denials"][0]["sentence"]
    rule = shlex.split(denied.partition("--allow ")[2].partition(" (")[0])[0]
    allowed = cli.json("run", "reviewer.yaml", "--allow", rule)

    assert rule == "team.reviewer.file_issue:exact:team.reviewer"
    assert allowed["denials"] == []
    (run,) = [one for one in cli.json("runs", "list", "--task", allowed["id"]) if one["step"]]
    shown = cli.json("runs", "show", run["id"])
    assert shown["model"] == "openai:gpt-5"
    assert {"team.reviewer.file_issue", "team.reviewer.owner_of"} <= set(shown["tools"])
    transcript = cli.run("runs", "show", run["id"][-3:], "--transcript").stdout
    assert 'calls owner_of {"path": "a.py"}' in transcript
    assert "run_dirs" not in transcript
