"""The states of clauses, the records that count, and the run that proves them."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.spec_proofs import MAX_CHANGED_LINES, PROOFS, ProofRecord, read_proofs
from tests.architecture.spec_report import judge, report_lines
from tests.spec_document import ROOT, Clause, read_clauses
from tests.spec_plugin import ONE_PLUGIN

(TWO,) = read_clauses("""
- **AAA-01** (S0) Two things.
  - **AAA-01.a** The first
    of them.
  - **AAA-01.b** The second.
""")


def test_an_obligation_with_cases_is_one_for_each_and_its_own_id_proves_none() -> None:
    (clause,) = read_clauses("- **AAA-03** x\n  - **AAA-03.a** Each\n    way (cases: first, second-one).")

    found = lines(clause, {"AAA-03.a": {"both": "passed"}, "AAA-03.a/first": {"one": "passed"}})

    assert clause.ids == ("AAA-03", "AAA-03.a", "AAA-03.a/first", "AAA-03.a/second-one")
    assert found[0] == "AAA-03 partial 1/2"
    assert found[1].startswith("  AAA-03.a/second-one has no proof: Each way")


# -- clauses
def lines(clause: Clause, marks: dict[str, dict[str, str]], *records: ProofRecord) -> list[str]:
    return list(judge(clause, marks, records).lines())


def test_a_mark_of_the_clause_is_evidence_and_proves_no_obligation() -> None:
    assert lines(TWO, {"AAA-01": {"test": "passed"}}) == [
        "AAA-01 partial 0/2",
        "  AAA-01.a has no proof: The first of them.",
        "  AAA-01.b has no proof: The second.",
    ]


# -- records
def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of product code."""
    folder = tmp_path / "checkout"
    (folder / "worker").mkdir(parents=True)
    (folder / "worker" / "a.py").write_text("x = 1\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def written(folder: Path, **fields: Any) -> Path:
    record = {"clauses": ["OPS-03.a"], "commit": "0" * 40, "command": "make bench", "figures": {"workers": 4}, **fields}
    (folder / "scale.json").write_text(json.dumps(record))
    return folder


def read_one(checkout: Path, **fields: Any) -> ProofRecord:
    (record,) = read_proofs(written(checkout.parent, **fields), checkout=checkout)
    return record


def test_a_record_of_a_run_on_this_code_proves_what_it_names(checkout: Path) -> None:
    record = read_one(checkout, commit=git(checkout, "rev-parse", "--short", "HEAD"))

    (clause,) = read_clauses("- **OPS-03** x\n  - **OPS-03.a** y")
    report = judge(clause, {}, [record])

    assert record.stale == ""
    assert list(report.lines(with_tests=True)) == ["OPS-03 proven 1/1", "  OPS-03.a by docs/proofs/scale.json"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_record_is_stale_when_the_product_has_changed_much_since(checkout: Path, is_committed: bool) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "worker" / "a.py").write_text("x = 2\n" * MAX_CHANGED_LINES)
    if is_committed:
        git(checkout, "commit", "--quiet", "--all", "-m", "two")

    record = read_one(checkout, commit=commit)

    assert f"{MAX_CHANGED_LINES + 1} lines of product code changed" in record.stale
    assert judge(TWO, {}, [ProofRecord("x.json", TWO.ids, commit, record.stale)]).state == "missing"
    (told,) = [line for line in report_lines([], [record], with_tests=False) if "scale.json" in line]
    assert told.startswith("docs/proofs/scale.json is stale and proves nothing: ")


def test_a_record_of_a_commit_outside_the_history_is_stale(checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "-b", "other")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "beside")
    beside = git(checkout, "rev-parse", "HEAD")
    git(checkout, "checkout", "--quiet", "-")

    assert read_one(checkout, commit=beside).stale == f"{beside} is not in the history of HEAD"
    assert "is not in the history of HEAD" in read_one(checkout).stale


def test_the_records_of_this_project_are_sound() -> None:
    assert read_proofs(PROOFS)


_TESTS = """
import pytest

@pytest.mark.spec("AAA-01")
def test_holds(): pass

@pytest.mark.spec("AAA-02")
def test_fails(): assert False

@pytest.mark.chaos
@pytest.mark.spec("AAA-03")
def test_is_left_out(): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of three tests with this project's pytest settings, plugin and report."""
    folder = tmp_path / "project"
    for name in ("tests/__init__.py", "tests/architecture/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    parts = ("tests/spec_document.py", "tests/spec_plugin.py")
    for name in (*parts, "tests/architecture/spec_report.py", "tests/architecture/spec_proofs.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tests" / "conftest.py").write_text(
        "from tests.spec_plugin import SpecResults\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(SpecResults(config), 'spec-results')\n"
    )
    (folder / "tests" / "test_three.py").write_text(_TESTS)
    (folder / "docs" / "proofs").mkdir(parents=True)
    (folder / "docs" / "spec.md").write_text("".join(f"- **AAA-0{n}** A clause.\n" for n in (1, 2, 3)))
    (folder / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n.spec-results.json\n")
    (folder / "pyproject.toml").write_text(_pytest_settings())
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def _pytest_settings() -> str:
    """This project's own pytest table, addopts and all, but for the settings of plugins that have no part in this."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    kept = {key: table[key] for key in ("testpaths", "addopts", "markers")}
    return "[tool.pytest.ini_options]\n" + "".join(f"{key} = {value!r}\n" for key, value in kept.items())


def _test_command(*added: str) -> list[str]:
    """The command line of `make test`."""
    command = ["make", "-n", "test", "JOBS=2", "RERUNS="]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in made.stdout.splitlines() if " -m pytest" in line]
    return [sys.executable, *shlex.split(line)[1:], *added]


def _run(command: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(project), **ONE_PLUGIN}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def _report(project: Path) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-P", "-m", "tests.architecture.spec_report", "--last-run"], project)


def test_the_command_of_make_test_leaves_results_that_the_report_prints(project: Path) -> None:
    tests = _run(_test_command(), project)

    report = _report(project)

    assert "1 failed, 1 passed" in tests.stdout, tests.stdout + tests.stderr
    assert report.stdout.splitlines() == [
        "AAA-01 proven 1/1",
        "AAA-02 failing 0/1",
        "  failed: tests/test_three.py::test_fails",
        "  AAA-02 has no proof: A clause.",
        "AAA-03 missing 0/1",
        "  AAA-03 has no proof: A clause.",
        "3 clauses: 1 proven, 0 partial, 1 failing, 1 missing",
        "3 obligations: 1 proven, 2 without a proof",
    ], report.stderr


@pytest.mark.parametrize("selection", [["-m", "chaos"], ["tests/test_three.py"]], ids=" ".join)
def test_a_selection_of_the_tests_leaves_no_result(project: Path, selection: list[str]) -> None:
    _run(_test_command("-n", "0", *selection), project)

    report = _report(project)

    assert report.returncode == 1
    assert "no result of a full test run" in report.stderr


@pytest.mark.parametrize(("tests", "spec", "status"), [(0, 0, 0), (1, 0, 1), (0, 3, 3), (1, 3, 1)])
def test_ci_reports_on_its_own_test_run_and_ends_stdout_with_its_closing_line(
    tmp_path: Path, tests: int, spec: int, status: int
) -> None:
    folder, calls = tmp_path / "checkout", tmp_path / "calls"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "make").write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n'
        f'case "$*" in test*) echo "2 passed in 1 s"; exit {tests};; *spec*) echo "the report"; exit {spec};; esac\n'
    )
    (folder / "make").chmod(0o755)

    done = subprocess.run(
        [folder / ".ci" / "run"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert calls.read_text().splitlines() == ["lint", "test RERUNS=1", "--no-print-directory spec LAST_RUN=1"]
    assert done.stdout.splitlines()[-1] == "2 passed in 1 s"
    assert "the report" in done.stderr
    assert done.returncode == status
