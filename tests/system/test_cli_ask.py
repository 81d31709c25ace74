"""``soong ask`` with real processes: an agent on a provider's wire plans, workers work, and it answers."""

from collections.abc import Iterator
from typing import Any

import pytest
from llmock.scenarios import Match, Reply, ToolCall
from llmock.testing import LLMockServer

from tests.system.cli_scene import CliHarness, scene
from tests.wires.wire import Wires

PLANNER = "openai-chat:gpt-5"
WORKER = "openai-chat:gpt-5-mini"
STEPS = [
    {"id": "look", "instructions": "Say what is in this folder.", "allowed_tools": ["code.list_dir"], "model": WORKER},
    {"id": "judge", "instructions": "Judge ${steps.look}.", "depends_on": ["look"], "model": WORKER},
]


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        yield one


def planner(*calls: ToolCall, text: str = "") -> Reply:
    return _reply("gpt-5", *calls, text=text)


def worker(*calls: ToolCall, text: str = "") -> Reply:
    return _reply("gpt-5-mini", *calls, text=text)


def _reply(model: str, *calls: ToolCall, text: str = "") -> Reply:
    given: dict[str, Any] = {"tool_calls": calls} if calls else {"text": text}
    return Reply(**given, match=Match(model=model))


@pytest.mark.spec("DIS-01", "DAG-01")
def test_an_agent_with_a_goal_makes_a_task_and_answers(cli: CliHarness) -> None:
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
        wires.will(
            planner(ToolCall("agent__task_create", {"title": "look around", "steps": STEPS})),
            worker(ToolCall("code__list_dir", {"path": "."})),
            worker(text="a folder with nothing in it"),
            worker(text="it is empty"),
            planner(ToolCall("agent__dispatch_worker", {})),
            planner(ToolCall("agent__task_complete", {})),
            planner(text="The folder is empty."),
        )

        ended = cli.json("ask", "What is in this folder?", "--model", PLANNER)

        assert (ended["status"], ended["answer"], ended["exit_code"]) == ("completed", "The folder is empty.", 0)
        assert [(step["id"], step["status"], step["output"]) for step in ended["steps"]] == [
            ("look", "completed", "a folder with nothing in it"),
            ("judge", "completed", "it is empty"),
        ]
        wires.verdict.assert_ok(strict=True)


@pytest.mark.spec("DIS-01")
def test_a_goal_without_a_model_is_refused_with_what_to_do(cli: CliHarness) -> None:
    refused = cli.run("ask", "do it")

    assert refused.returncode == 2
    assert "the agent 'orchestrator' has no model; choose one with --model provider:name" in refused.stderr
