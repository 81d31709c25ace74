"""The answer of ``soong ask`` while it arrives: shown on a terminal, and given up within a second."""

from collections.abc import Iterator

import pytest
from llmock.scenarios import Reply, StreamFault
from llmock.testing import LLMockServer

from tests.system.cli_scene import CliHarness, Terminal, scene
from tests.wires.wire import Wires

PLANNER = "openai-chat:gpt-5"
STALL_S = 8.0
ANSWER = "The folder holds nothing at all, as far as anybody can see from here."


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        yield one


@pytest.mark.spec("EVT-05")
def test_a_terminal_shows_an_answer_while_it_arrives(cli: CliHarness) -> None:
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
        wires.will(StreamFault("stall", after_chunks=8, stall_seconds=STALL_S), Reply(text=ANSWER))

        terminal = Terminal(cli, "ask", "What is in this folder?", "--model", PLANNER)
        terminal.expect("The folder holds")

        assert not server.state.journal.records()  # the answer is still on its way
        assert "from here" not in terminal.text
        terminal.expect(ANSWER)
        assert terminal.wait() == 0
