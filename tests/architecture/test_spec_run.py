import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.spec_document import ROOT
from tests.spec_plugin import ONE_PLUGIN

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
