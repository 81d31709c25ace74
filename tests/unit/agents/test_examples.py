"""The small examples do what their first lines say."""

from pathlib import Path

import pytest

from soong.shared.engine.tasks.step import Outcome
from tests.unit.agents.parts import EXAMPLES, Playground, RuleGate, load_example


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_a_plan_without_problem(name: str) -> None:
    plan = load_example(name)

    assert plan.steps


async def test_approve_goes_on_when_a_worker_is_denied(tmp_path: Path) -> None:
    ground = Playground(tmp_path, tmp_path, RuleGate(allows=lambda call: call.target.shown.endswith("left.txt")))

    results = await ground.run_plan(load_example("approve.yaml"))

    assert ground.ends["write[left]"].outcome is Outcome.CLEAN
    assert ground.ends["write[right]"].outcome is Outcome.PARTIAL
    assert results["tell"].output["notes"][1]["error"] == "permission_denied"  # type: ignore[index,call-overload]


def code_base(folder: Path) -> Path:
    (folder / "a").mkdir()
    (folder / "c").mkdir()
    (folder / "a" / "one.py").write_text("def fetch(x):\n    return fetch2(x)\n\nfetch(1)")
    (folder / "a" / "two.py").write_text("prefetch = fetch\n")
    (folder / "c" / "three.py").write_text("# fetch\n")
    (folder / "c" / "four.py").write_text("nothing\n")
    return folder


async def test_refactor_of_a_name_that_is_nowhere_asks_nobody(tmp_path: Path) -> None:
    gate = RuleGate()
    ground = Playground(code_base(tmp_path), tmp_path, gate)

    results = await ground.run_plan(load_example("refactor.yaml"), old="nowhere", new="x.y")

    assert gate.asked == []
    assert results["tell"].output == {"said": "0 lines of 0 files were changed, 0 files were kept.", "kept": []}


async def test_mixed_counts_by_a_function_what_an_agent_lists(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name, size in {"src/a.py": 3, "src/b.py": 4, "notes.md": 5, "LICENSE": 6}.items():
        (tmp_path / name).write_text("x" * size)

    results = await Playground(tmp_path, tmp_path).run_plan(load_example("mixed.yaml"))

    assert results["tally"].output == {"kinds": {".py": 2, "without a suffix": 1, ".md": 1}, "bytes": 18}
    said = "The folder holds 4 files (2 .py, 1 without a suffix, 1 .md). They have 18 bytes."
    assert results["tell"].output == {"said": said}
