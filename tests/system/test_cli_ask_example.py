"""examples/fix.md: an orchestrator has a code base reviewed and fixed, and its grants are narrow."""

import re
from pathlib import Path

import pytest
from llmock.scenarios import Match, Reply, ToolCall

from tests.system.cli_scene import CliHarness
from tests.wires.wire import Wires

SCENE = {"is_warm": True, "models": "openai-chat:gpt-*"}

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANNER = "openai-chat:gpt-5"
REVIEWER = "openai-chat:gpt-5-mini"
FIXER = "openai-chat:gpt-4o"
BUGGY = "def mean(values):\n    return sum(values) / (len(values) - 1)\n"
FINDING = "src/stats.py:2 divides by one too few; version.py:1 has the wrong year"


def said(model: str, text: str) -> Reply:
    return Reply(text=text, match=Match(model=model))


def called(model: str, *calls: tuple[str, dict[str, object]]) -> Reply:
    return Reply(tool_calls=tuple(ToolCall(name, given) for name, given in calls), match=Match(model=model))


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, object]]:
    return "code__edit_file", {"path": path, "edits": [{"old": old, "new": new}]}


@pytest.mark.spec("DIS-01", "DIS-02", "PER-21")
def test_what_is_granted_is_fixed_and_what_is_not_is_told(cli: CliHarness, wires: Wires) -> None:
    (cli.folder / "src").mkdir()
    stats, version = cli.folder / "src" / "stats.py", cli.folder / "version.py"
    stats.write_text(BUGGY)
    version.write_text("YEAR = 1999\n")
    review = {"id": "review", "agent": "reviewer", "instructions": "Review src.", "model": REVIEWER}
    fix: dict[str, object] = {"agent": "implementer", "instructions": f"Fix: {FINDING}", "model": FIXER}
    wires.will(
        called("gpt-5", ("agent__task_create", {"title": "review", "steps": [review]})),
        called("gpt-5-mini", ("code__read_file", {"path": "src/stats.py"})),
        said("gpt-5-mini", FINDING),
        called("gpt-5", ("agent__dispatch_worker", {})),
        called("gpt-5", ("agent__dispatch_worker", fix)),
        called("gpt-4o", edit("src/stats.py", "(len(values) - 1)", "len(values)"), edit("version.py", "1999", "2026")),
        said("gpt-4o", "stats.py is fixed; version.py was denied"),
        called("gpt-5", ("agent__task_complete", {})),
        said("gpt-5", "One of two is fixed."),
    )

    goal = (EXAMPLES / "fix.md").read_text()
    ended = cli.json("ask", goal, "--model", PLANNER, "--allow", f"code.edit_file:{stats.parent}")

    assert ended["answer"] == "One of two is fixed."
    assert stats.read_text() == BUGGY.replace("(len(values) - 1)", "len(values)")
    assert version.read_text() == "YEAR = 1999\n"
    # The job that reads the session for memories asks the model last.
    assert any("permission_no_callback" in str(one.body["messages"]) for one in wires.requests[-2:])
    assert {run["definition"] for run in cli.json("runs", "list", "--task", ended["id"])} >= {
        "orchestrator",
        "implementer",
    }
    offered = next(one.body["tools"] for one in wires.requests if one.body["model"] == "gpt-5-mini")
    assert "code__edit_file" not in {tool["function"]["name"] for tool in offered}


def test_the_page_of_examples_says_how_it_is_asked() -> None:
    page = (EXAMPLES / "README.md").read_text()

    assert re.search(r'soong ask "\$\(cat examples/fix\.md\)" --model \S+ --allow code\.edit_file:\$PWD/src', page)
