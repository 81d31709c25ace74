"""Agents behind a gateway: it translates three wires into one, and its key is not the provider's."""

from collections.abc import Iterator
from typing import Final

import pytest
from llmock.scenarios import Reply, ToolCall
from llmock.testing import LLMockServer

from tests.extra import litellm_program
from tests.litellm.server import environment, litellm_proxy
from tests.system.cli_scene import CliHarness, scene
from tests.wires.wire import MODELS

TRANSLATED: Final = ("openai-chat", "openai-responses", "anthropic")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def upstream() -> Iterator[LLMockServer]:
    with LLMockServer() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, upstream: LLMockServer) -> Iterator[str]:
    names = [MODELS[wire].partition(":")[2] for wire in TRANSLATED]
    folder = tmp_path_factory.mktemp("gateway")
    with litellm_proxy(litellm_program(), folder, upstream.base_url("openai"), names) as address:
        yield address


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "notes.txt").write_text("three bugs")
        yield one


def plan(wire: str) -> str:
    step = "{id: look, instructions: Read notes.txt., allowed_tools: [code.read_file], "
    return f"title: look\nsteps:\n  - {step}model: '{MODELS[wire]}'}}\n"


@pytest.mark.spec("REG-04", "DIS-09")
@pytest.mark.parametrize("wire", TRANSLATED)
def test_an_agent_behind_a_gateway_calls_its_tool_and_answers(
    cli: CliHarness, gateway: str, upstream: LLMockServer, wire: str
) -> None:
    upstream.state.scenarios.clear()
    upstream.state.journal.clear()
    call = ToolCall("code__read_file", {"path": "notes.txt"})
    upstream.state.scenarios.add(Reply(tool_calls=(call,)), Reply(text="There are three bugs.", times=None))
    cli.environment |= environment(gateway)

    ended = cli.json("run", cli.plan(plan(wire)))

    (step,) = ended["steps"]
    assert (step["status"], step["outcome"], step["output"]) == ("completed", "clean", "There are three bugs.")
    asked = upstream.state.journal.records(wait=2.0)
    assert len(asked) == 2
    assert "three bugs" in str(asked[1].body)


def test_a_key_that_the_gateway_does_not_know_ends_the_run_with_its_words(cli: CliHarness, gateway: str) -> None:
    cli.environment |= environment(gateway, key="sk-unknown")

    ended = cli.json("run", cli.plan(plan("openai-chat")))

    (step,) = ended["steps"]
    assert step["error"]["type"] == "provider_failed"
    assert step["error"]["message"].startswith("status_code: 40")
    assert "sk-unknown" not in str(ended)
