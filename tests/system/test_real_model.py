"""A real model on a real server: 135 million parameters, often wrong. Whatever it says, Soong ends, and ends truly."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.extra import llama_python
from tests.llama.server import llama_server
from tests.system.cli_scene import CliHarness, scene
from tests.warm import called

LIMIT_S = 400.0
CONTEXT_TOKENS = 2048
"""Small: an orchestrator's tools are longer, so that the server refuses them."""

DEFINITION = "---\ndescription: Looks into folders.\nlimits: {max_turns: 2}\nmax_tokens: 60\n---\nYou look.\n"
STEP = """
  - id: %s
    model: %s:local
    agent: looker
    allowed_tools: [%s]
    instructions: List the folder "." with your tool if you have one. Then name a colour in one word.
"""
OUTPUT = "    output: {type: object, required: [colour], properties: {colour: {type: string}}}\n"
WIRES = ("openai-chat", "openai-responses", "anthropic", "ollama")

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with llama_server(llama_python(), CONTEXT_TOKENS) as environment, scene() as one:
        one.environment |= environment
        (one.home / "agents").mkdir(parents=True)
        (one.home / "agents" / "looker.md").write_text(DEFINITION)
        yield one


def _ended(cli: CliHarness, *arguments: str) -> dict[str, Any]:
    arguments = (*arguments, "--approvals", "deny", "--json")
    done = called("soong.orchestrator.cli", arguments, env=cli.env, cwd=cli.folder, limit_s=LIMIT_S)
    assert "Traceback" not in done.stderr + cli.logs(), done.stderr + cli.logs()
    ended: dict[str, Any] = json.loads(done.stdout)
    assert ended["exit_code"] == done.returncode
    assert "status" in ended, ended
    return ended


def _is_true_end(step: dict[str, Any], *, has_schema: bool) -> bool:
    """Say whether a step has a result that is one, or an error that says what happened."""
    if step["status"] == "completed":
        return isinstance(step["output"]["colour"], str) if has_schema else bool(step["output"])
    error = step["error"]
    return step["status"] == "failed" and bool(error["type"] and error["message"])


@pytest.mark.spec("REG-04", "DIS-12.c")
def test_steps_end_with_a_valid_output_or_with_a_reason(cli: CliHarness) -> None:
    with_schema = [STEP % (f"say_{number}", wire, "") + OUTPUT for number, wire in enumerate(WIRES)]
    with_tool = STEP % ("look", "openai-chat", "code.list_dir")

    ended = _ended(cli, "run", cli.plan("title: real\nsteps:" + "".join(with_schema) + with_tool))

    assert len(ended["steps"]) == len(WIRES) + 1
    for step in ended["steps"]:
        assert _is_true_end(step, has_schema=step["id"].startswith("say")), step
    is_clean = all(step["status"] == "completed" for step in ended["steps"])
    assert ended["status"] == ("completed" if is_clean else "failed")
    assert (ended["exit_code"] == 0) == is_clean


@pytest.mark.spec("DIS-01", "DIS-12.c")
def test_an_orchestrator_whose_tools_do_not_fit_says_that_the_context_is_full(cli: CliHarness) -> None:
    ended = _ended(cli, "ask", "What is in this folder?", "--model", "openai-chat:local")

    assert ended["status"] == "failed"
    assert ended["exit_code"] != 0
    assert "context" in json.dumps(ended), ended


@pytest.mark.spec("DIS-01", "DIS-12.b")
@pytest.mark.parametrize("wire", WIRES)
def test_an_agent_with_a_goal_answers_or_says_why_it_does_not(cli: CliHarness, wire: str) -> None:
    ended = _ended(cli, "ask", "What is in this folder?", "--agent", "explorer", "--model", f"{wire}:local")

    if ended["status"] == "completed":
        assert ended["answer"]
        assert ended["exit_code"] == 0
    else:
        assert (ended["status"], ended["exit_code"]) == ("failed", 1)
        assert ended["reason"]
