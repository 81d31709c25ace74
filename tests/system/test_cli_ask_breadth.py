"""``soong ask`` at its edges: fifty children, a third level, a killed service, a full context, a provider down."""

import os
import signal
from collections import Counter

import psutil
import pytest
from llmock.scenarios import Match, Reply, ToolCall

from tests.system.cli_scene import CliHarness
from tests.system.test_cli_ask import PLANNER, WORKER, planner, worker
from tests.wires.wire import Wires

SCENE = {"is_warm": True, "models": "openai-chat:gpt-*"}

CHILDREN = 50
pytestmark = pytest.mark.timeout(300)


@pytest.mark.spec("EXE-03.b", "DIS-02", "DAG-07")
def test_fifty_children_end_once_each_start_nobody_and_a_follow_up_outlives_the_service(
    cli: CliHarness, wires: Wires
) -> None:
    calls = [
        ToolCall("agent__create_sub_agent", {"title": f"c{number}", "instructions": f"N{number}.", "model": WORKER})
        for number in range(CHILDREN)
    ]
    third = ToolCall("agent__create_sub_agent", {"instructions": "Go on.", "model": WORKER})
    wires.will(
        planner(*calls),
        worker(third),
        Reply(text="done", match=Match(model="gpt-5-mini"), times=CHILDREN),
        planner(text="All are done."),
        planner(text="There were fifty."),
    )
    up = cli.up_warm()

    ended = cli.json("ask", "Ask fifty.", "--model", PLANNER)

    assert (ended["answer"], ended["exit_code"]) == ("All are done.", 3), ended
    assert Counter(step["outcome"] for step in ended["steps"]) == {"clean": CHILDREN - 1, "partial": 1}
    assert Counter(step["status"] for step in ended["steps"]) == {"completed": CHILDREN}
    asked = Counter(one.body["model"] for one in wires.requests)
    assert asked == {"gpt-5": 2, "gpt-5-mini": CHILDREN + 1}

    family = psutil.Process(cli.record()["pid"]).children(recursive=True)
    os.kill(cli.record()["pid"], signal.SIGKILL)
    up.communicate(timeout=60)
    psutil.wait_procs(family, timeout=30)
    second = cli.json("ask", "How many?", "--session", ended["session"])

    assert second["answer"] == "There were fifty."
    assert "All are done." in str(wires.requests[-1].body["messages"])
