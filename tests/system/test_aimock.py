"""Plans and goals on the wires of a second server that is not ours, which calls two tools in one answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aimock.server import aimock, environment, requests_of
from tests.extra import aimock_program
from tests.system.cli_scene import CliHarness, scene
from tests.wires.wire import MODELS

LOOK = "Say what is in this folder and in notes.txt."
GOAL = "How many bugs are there?"
FOUND = "three bugs"
EVERY_WIRE = pytest.mark.parametrize("wire", list(MODELS))

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene(models="*:*") as one:
        (one.folder / "notes.txt").write_text(FOUND)
        yield one


def answer(said: str, turn: int, response: dict[str, Any]) -> dict[str, Any]:
    return {"match": {"userMessage": said, "turnIndex": turn}, "response": response}


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": given} for name, given in made]}


def fixtures(model: str) -> list[dict[str, Any]]:
    """Return what the server says to an agent with a goal and to its worker."""
    work = {"instructions": LOOK, "model": model, "agent": "explorer"}
    return [
        answer(LOOK, 0, calls(("code__list_dir", {"path": "."}), ("code__read_file", {"path": "notes.txt"}))),
        answer(LOOK, 1, {"content": FOUND}),
        answer(GOAL, 0, calls(("agent__dispatch_worker", work))),
        answer(GOAL, 1, {"content": f"There are {FOUND}."}),
    ]


def plan(model: str, *ids: str) -> str:
    steps = [f"  - {{id: {one}, instructions: {LOOK!r}, agent: explorer, model: '{model}'}}\n" for one in ids]
    return "title: look\nsteps:\n" + "".join(steps)


@pytest.mark.spec("REG-04", "DIS-09", "EXE-03.a")
@EVERY_WIRE
def test_a_plan_and_a_goal_end_with_what_was_read(cli: CliHarness, wire: str, tmp_path: Path) -> None:
    with aimock(aimock_program(), tmp_path, fixtures(MODELS[wire])) as address:
        cli.environment |= environment(address)

        ended = cli.json("run", cli.plan(plan(MODELS[wire], "look")))
        asked = cli.json("ask", GOAL, "--model", MODELS[wire])

        (step,) = ended["steps"]
        assert (step["status"], step["outcome"], step["output"]) == ("completed", "clean", FOUND)
        assert (asked["answer"], [one["output"] for one in asked["steps"]]) == (f"There are {FOUND}.", [FOUND])
        told = requests_of(address)
        assert len(told) == 6
        assert FOUND in str(told[1])
        assert "notes.txt" in str(told[1])


@pytest.mark.spec("DIS-09.a", "DIS-12.d")
@pytest.mark.parametrize("wire", ["openai-chat", "anthropic"])
def test_steps_complete_where_the_server_refuses_some_requests_and_cuts_others(
    cli: CliHarness, wire: str, tmp_path: Path
) -> None:
    trouble = ("--chaos-ratelimit", "0.1", "--chaos-disconnect", "0.05")
    with aimock(aimock_program(), tmp_path, fixtures(MODELS[wire]), *trouble) as address:
        cli.environment |= environment(address)

        ended = cli.json("run", cli.plan(plan(MODELS[wire], *(f"look_{number}" for number in range(12)))))

        assert {(step["status"], step["output"]) for step in ended["steps"]} == {("completed", FOUND)}
