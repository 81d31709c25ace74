"""``soong run`` with real providers' clients in the workers, over the wires of a server that is not ours."""

from collections.abc import Iterator

import pytest
from llmock.scenarios import Reply, ToolCall
from llmock.testing import LLMockServer

from tests.system.cli_scene import CliHarness, scene
from tests.wires.wire import MODELS, Wires

PLAN = """
title: look
steps:
  - {id: look, instructions: "Say what is in this folder.", model: "%s", allowed_tools: [code.list_dir]}
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        yield one


@pytest.mark.spec("REG-04")
@pytest.mark.spec("DIS-05.a")
@pytest.mark.parametrize("wire", ["openai-chat", "anthropic", "google"])
def test_a_worker_speaks_the_providers_wire(cli: CliHarness, wire: str) -> None:
    with LLMockServer() as server:
        wires = Wires(server)
        wires.will(Reply(tool_calls=(ToolCall("code__list_dir", {"path": "."}),)), Reply(text="one plan"))
        cli.environment |= wires.environment

        ended = cli.json("run", cli.plan(PLAN % MODELS[wire]))

        (step,) = ended["steps"]
        assert (step["status"], step["outcome"], step["output"]) == ("completed", "clean", "one plan")
        told = wires.requests[-1].body
        assert "plan.yaml" in str(told)
        wires.verdict.assert_ok(strict=True)
