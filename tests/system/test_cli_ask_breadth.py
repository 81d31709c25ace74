"""``soong ask`` at its edges: fifty children, a third level, a killed service, a full context, a provider down."""

import os
import signal
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from llmock.scenarios import Fail, Match, Reply, ToolCall
from llmock.testing import LLMockServer

from tests.system.cli_scene import CliHarness, scene, until
from tests.system.test_cli_ask import OTHER, PLANNER, WORKER, planner, worker
from tests.wires.wire import Wires

CHILDREN = 50
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene(models="openai-chat:gpt-*") as one:
        yield one


@pytest.mark.spec("EXE-03.b", "DIS-02", "DAG-07")
def test_fifty_children_end_once_each_start_nobody_and_a_follow_up_outlives_the_service(cli: CliHarness) -> None:
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
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
        up = cli.start("up")
        until((cli.home / "service.json").exists, "the service is up", cli.logs)

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


@pytest.mark.spec("EXE-09")
def test_an_ask_whose_context_fills_up_and_whose_provider_is_down_still_answers(cli: CliHarness) -> None:
    sections = '[context]\ncompaction = "drop_results"\n[context.windows]\n"openai-chat:*" = 20000\n'
    with (cli.home / "config.toml").open("a") as file:
        file.write(f'{sections}[models."{PLANNER}"]\nfallback = ["{OTHER}"]\n')
    for number in range(400):
        (cli.folder / f"a-file-with-a-very-long-name-that-fills-a-context-{number}.txt").touch()
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
        look = ToolCall("code__list_dir", {"path": "."})
        wires.will(Fail(401, times=None, match=Match(model="gpt-5")))
        wires.will(Reply(tool_calls=(look,), match=Match(model="gpt-4o"), times=8))
        wires.will(Reply(text="the same eight times", match=Match(model="gpt-4o")))

        ended = cli.json("ask", "Look.", "--model", PLANNER)

        assert ended["answer"] == "the same eight times", ended
        run = cli.json("runs", "list", "--task", ended["id"])[0]["id"]
        events = cli.run("runs", "tail", run, "--json").stdout
        assert events.count('"soong.model_fallback"') == 1
        assert '"soong.context_compacted"' in events
