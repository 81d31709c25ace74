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


def code_base(folder: Path) -> Path:
    (folder / "a").mkdir()
    (folder / "c").mkdir()
    (folder / "a" / "one.py").write_text("def fetch(x):\n    return fetch2(x)\n\nfetch(1)")
    (folder / "a" / "two.py").write_text("prefetch = fetch\n")
    (folder / "c" / "three.py").write_text("# fetch\n")
    (folder / "c" / "four.py").write_text("nothing\n")
    return folder


async def test_refactor_has_one_worker_a_folder_and_asks_with_one_diff_a_file(tmp_path: Path) -> None:
    gate = RuleGate(allows=lambda call: "/a/" in call.target.shown)
    ground = Playground(code_base(tmp_path), tmp_path, gate)

    results = await ground.run_plan(load_example("refactor.yaml"), old="fetch", new="load")

    assert {name for name in ground.ends if name.startswith("rename[")} == {"rename[a]", "rename[c]"}
    assert len(gate.asked) == 3
    assert (tmp_path / "a" / "one.py").read_text() == "def load(x):\n    return fetch2(x)\n\nload(1)"
    assert (tmp_path / "a" / "two.py").read_text() == "prefetch = load\n"
    assert (tmp_path / "c" / "three.py").read_text() == "# fetch\n"
    said = "3 lines of 2 files were changed, 1 files were kept."
    assert results["tell"].output == {"said": said, "kept": ["c/three.py: permission_denied"]}


async def test_refactor_of_a_name_that_is_nowhere_asks_nobody(tmp_path: Path) -> None:
    gate = RuleGate()
    ground = Playground(code_base(tmp_path), tmp_path, gate)

    results = await ground.run_plan(load_example("refactor.yaml"), old="nowhere", new="x.y")

    assert gate.asked == []
    assert results["tell"].output == {"said": "0 lines of 0 files were changed, 0 files were kept.", "kept": []}


async def test_research_cites_the_lines_of_its_pages(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nIt is installed with pip.\n")
    (tmp_path / "b.md").write_text("Nothing about it.\n")
    (tmp_path / "c.txt").write_text("Installing needs Python.\n")
    plan, ground = load_example("research.yaml"), Playground(tmp_path, tmp_path)

    found = await ground.run_plan(plan, question="How is it installed?")
    given = await ground.run_plan(plan, question="How is it installed?", pages=["c.txt", "b.md"])

    assert found["report"].output == "# How is it installed?\n\n- It is installed with pip. [a.md:3]"
    assert given["report"].output == "# How is it installed?\n\n- Installing needs Python. [c.txt:1]"


async def test_research_without_pages_says_so(tmp_path: Path) -> None:
    results = await Playground(tmp_path, tmp_path).run_plan(load_example("research.yaml"))

    assert str(results["report"].output).endswith("There are no pages to read.")


async def test_mixed_counts_by_a_function_what_an_agent_lists(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name, size in {"src/a.py": 3, "src/b.py": 4, "notes.md": 5, "LICENSE": 6}.items():
        (tmp_path / name).write_text("x" * size)

    results = await Playground(tmp_path, tmp_path).run_plan(load_example("mixed.yaml"))

    assert results["tally"].output == {"kinds": {".py": 2, "without a suffix": 1, ".md": 1}, "bytes": 18}
    said = "The folder holds 4 files (2 .py, 1 without a suffix, 1 .md). They have 18 bytes."
    assert results["tell"].output == {"said": said}
