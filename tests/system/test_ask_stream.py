"""The answer of ``soong ask`` while it arrives: shown on a terminal, and given up within a second."""

import json
import time

import pytest
from llmock.scenarios import Match, Reply, StreamFault, ToolCall

from tests.system.cli_scene import CliHarness, Terminal, until
from tests.system.test_cli_ask import PLANNER, WORKER, planner
from tests.wires.wire import Wires

SCENE = {"is_warm": True, "models": "openai-chat:gpt-*"}

STALL_S = 8.0
ANSWER = "The folder holds nothing at all, as far as anybody can see from here."


@pytest.mark.spec("EVT-05")
def test_a_terminal_shows_an_answer_while_it_arrives(cli: CliHarness, wires: Wires) -> None:
    wires.will(StreamFault("stall", after_chunks=8, stall_seconds=STALL_S), Reply(text=ANSWER))

    terminal = Terminal(cli, "ask", "What is in this folder?", "--model", PLANNER)
    terminal.expect("The folder holds")

    assert not wires.server.state.journal.records()  # the answer is still on its way
    assert "from here" not in terminal.text
    terminal.expect(ANSWER)
    assert terminal.wait() == 0


@pytest.mark.spec("EXE-07", "EXE-10")
@pytest.mark.parametrize("who", ["gpt-5", "gpt-5-mini"], ids=["the agent", "its worker"])
def test_cancelling_while_an_answer_arrives_closes_its_request_and_asks_nothing_more(
    cli: CliHarness, wires: Wires, who: str
) -> None:
    """By cause: the server sees the client leave, long before its own silence ends, and no other request comes."""
    look = (ToolCall("code__list_dir", {"path": "."}), ToolCall("code__list_dir", {"path": ".."}))
    journal = wires.server.state.journal
    child = {"instructions": "Look.", "model": WORKER, "allowed_tools": ["code.list_dir"]}
    before = [planner(ToolCall("agent__dispatch_worker", child))] if who == "gpt-5-mini" else []
    stall = StreamFault("stall", after_chunks=6, stall_seconds=60.0, match=Match(model=who, stream=True))
    wires.will(*before, stall, Reply(tool_calls=look, match=Match(model=who)))
    asking = cli.start("ask", "Look.", "--model", PLANNER, "--json")
    until(lambda: len(journal.records()) == len(before) and journal.in_flight == 1, "it streams", cli.logs)

    assert cli.run("tasks", "cancel", cli.task_id()).returncode == 0

    cancelled_s = time.monotonic()
    until(lambda: journal.in_flight == 0, "the request is closed", cli.logs)
    assert time.monotonic() - cancelled_s < 1
    out, _ = asking.communicate(timeout=30)
    assert json.loads(out)["status"] == "cancelled"
    records = journal.records()
    assert len(records) == len(before) + 1
    assert not records[-1].completed
    runs = cli.json("runs", "list", "--task", json.loads(out)["id"])
    assert {run["status"] for run in runs} == {"cancelled"}
