"""The audit's findings are true, and its report has them all."""

import gc
import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from soong.shared.engine.tasks.step import Outcome, StepResult
from tests.unit.agents.parts import Playground, RuleGate, load_example


async def audit(
    project: Path, folder: Path, gate: RuleGate | None = None
) -> tuple[Playground, Mapping[str, StepResult]]:
    ground = Playground(project, folder, gate or RuleGate())
    return ground, await ground.run_plan(load_example("audit/audit.yaml"), report_dir=str(folder))


def findings(results: Mapping[str, StepResult], kind: str) -> list[tuple[str, int]]:
    reviews = cast("Sequence[Mapping[str, Any]]", results["review"].output)
    return [(one["path"], one["line"]) for review in reviews for one in review["findings"] if one["kind"] == kind]


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


PLANTED = """\
import pickle as p, subprocess, yaml
from marshal import loads
from shelve import open as shelf


def first(a=[], *, b={}, c=dict(), d=(), e=None):  # TODO: later
    "shell=True and pickle.loads(x) in a text are nothing"
    try:
        p.loads(a)
    except Exception:
        pass


async def second(x=1):
    try:
        loads(x); shelf(x); yaml.load(x); yaml.load(x, Loader=yaml.SafeLoader); yaml.safe_load(x)
    except (ValueError, BaseException) as error:
        return None
    try:
        subprocess.run(x, shell=True)
        subprocess.run(x, shell=False)
    except:
        return x
    try:
        yaml.load(x, yaml.CSafeLoader)
    except ValueError:
        pass
    for one in x:
        try:
            one()
        except:  # FIXME
            "nothing"
            continue
"""


EXPECTED = {
    "swallowed_exception": [10, 17, 31],
    "unsafe_deserialisation": [9, 16, 16, 16],
    "shell_true": [20],
    "mutable_default": [6, 6, 6],
    "marker": [6, 31],
}
"""The lines of those findings, by their kind: what looks like them is none."""


def make_project(folder: Path) -> Path:
    root = folder / "project"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "skipped.py").write_text("# TODO\n", encoding="utf-8")
    (root / "lib" / "planted.py").write_text(PLANTED, encoding="utf-8")
    (root / "lib" / "broken.py").write_text("def (:\n", encoding="utf-8")
    (root / "lib" / "covered.py").write_text("def f():\n" + "    f()\n" * 79 + "    f()\n", encoding="utf-8")
    (root / "lib" / "deep" / "long.py").write_text("def g():\n" + "    g()\n" * 79 + "# end\n", encoding="utf-8")
    (root / "test_covered.py").write_text("", encoding="utf-8")
    return root


@pytest.mark.spec("DIS-08.b")
async def test_each_package_is_reviewed_with_real_searches_and_the_report_names_every_finding(tmp_path: Path) -> None:
    gate, project = RuleGate(), make_project(tmp_path)
    before = contents(project)

    ground, results = await audit(project, tmp_path, gate)

    reviews = cast("Sequence[Mapping[str, Any]]", results["review"].output)
    output = cast("Mapping[str, Any]", results["report"].output)
    tools = {str(node.payload["tool"]) for node in ground.notebooks["review[lib]"].written if "tool" in node.payload}
    written = (tmp_path / "report.md").read_text(encoding="utf-8")

    for kind, lines in EXPECTED.items():
        assert findings(results, kind) == [("lib/planted.py", line) for line in lines], kind
    assert len([name for name in ground.ends if name.startswith("review[")]) == output["packages"] == 3
    assert tools == {"code.search", "code.read_file"}
    assert sum(review["files_read"] for review in reviews) == 5
    assert (written, output["written"]) == (output["report"], True)
    for one in [one for review in reviews for one in review["findings"]]:
        assert f"`{one['path']}:{one['line']}`" in written
    assert [(call.definition.name, call.target.scope) for call in gate.asked] == [("code.write_file", str(tmp_path))]
    assert contents(project) == before


async def test_a_project_without_python_gets_one_review_and_an_empty_report(tmp_path: Path) -> None:
    project = tmp_path / "empty"
    project.mkdir()

    ground, results = await audit(project, tmp_path)

    assert [name for name in ground.ends if name.startswith("review")] == ["review[.]"]
    assert "0 findings in 1 packages." in cast(Any, results["report"].output)["report"]


@pytest.mark.spec("DAG-10.a")
async def test_a_denied_report_ends_partial_with_its_text_still_in_the_output(tmp_path: Path) -> None:
    gate = RuleGate(allows=lambda _call: False)

    ground, results = await audit(make_project(tmp_path), tmp_path, gate)

    end, output = ground.ends["report"], cast("Mapping[str, Any]", results["report"].output)
    assert end.outcome is Outcome.PARTIAL
    assert [one["type"] for one in end.denials] == ["permission_denied"]
    assert output["written"] is False
    assert output["report"].startswith("# Audit of")
    assert not (tmp_path / "report.md").exists()


async def test_a_hostile_line_does_not_hide_its_package_from_the_report(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    lines = ["deep = f(" + " + ".join(["x"] * 400) + ")", "f(beyond=1e999, half='\\ud800', long=99999999999999999999)"]
    for number, line in enumerate(lines):
        folder = project / f"hostile{number}"
        folder.mkdir()
        (folder / "planted.py").write_text(f"{PLANTED}\n{line}\n", encoding="utf-8")

    ground, results = await audit(project, tmp_path)

    reviews = [f"review[{name}]" for name in (".", "hostile0", "hostile1", "lib", "lib/deep")]
    assert [ground.ends[name].error for name in reviews] == [None] * len(reviews)
    for number in range(len(lines)):
        place = f"hostile{number}/planted.py"
        assert [line for path, line in findings(results, "swallowed_exception") if path == place] == [10, 17, 31]


def test_files_that_are_read_at_once_are_all_read() -> None:
    """Two threads that make syntax trees at once, with a collection in between: that fails without the lock."""
    load_example("audit/audit.yaml")  # its folder is where its modules are found now
    outline_of = importlib.import_module("outline").outline_of
    source = Path(__file__).read_text(encoding="utf-8")
    problems: set[str] = set()
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def read() -> None:
        for _ in range(12):
            unlinked: list[object] = [_Slow()]
            unlinked.append(unlinked)
            del unlinked
            try:
                problems.add(outline_of(source).problem)
            except SystemError as error:
                problems.add(str(error))

    gc.set_threshold(10, 2, 2)
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)

    assert problems == {""}


class _Slow:
    """Lets the collection of one be long enough for another thread to run."""

    def __del__(self) -> None:
        for _ in range(50):
            pass
