"""The small examples do what their first lines say."""

from pathlib import Path

import pytest

from soong.shared.engine.tasks.step import Outcome
from tests.unit.agents.parts import EXAMPLES, Playground, RuleGate, load_example


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_a_plan_without_problem(name: str) -> None:
    plan = load_example(name)

    assert plan.steps


async def test_hello_greets_with_what_the_first_step_saw(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()

    results = await Playground(tmp_path, tmp_path).run_plan(load_example("hello.yaml"), name="Ada")

    assert results["greet"].output == {"greeting": "Hello Ada, your folder has 2 entries."}


async def test_approve_asks_for_one_scope_from_each_worker(tmp_path: Path) -> None:
    gate = RuleGate()

    results = await Playground(tmp_path, tmp_path, gate).run_plan(load_example("approve.yaml"))

    assert {call.target.scope for call in gate.asked} == {str(tmp_path / "notes")}
    assert len(gate.asked) == 2
    assert (tmp_path / "notes" / "left.txt").read_text(encoding="utf-8") == "written by the worker left\n"
    assert results["tell"].output == {
        "notes": [
            {"path": "notes/left.txt", "written": True, "error": ""},
            {"path": "notes/right.txt", "written": True, "error": ""},
        ]
    }


async def test_approve_goes_on_when_a_worker_is_denied(tmp_path: Path) -> None:
    ground = Playground(tmp_path, tmp_path, RuleGate(allows=lambda call: call.target.shown.endswith("left.txt")))

    results = await ground.run_plan(load_example("approve.yaml"))

    assert ground.ends["write[left]"].outcome is Outcome.CLEAN
    assert ground.ends["write[right]"].outcome is Outcome.PARTIAL
    assert results["tell"].output["notes"][1]["error"] == "permission_denied"  # type: ignore[index,call-overload]
