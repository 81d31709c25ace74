"""Which test proved which clause: written to ``.spec-results.json`` after each full run, keyed by the tree's content.

`make spec` reads it (`tests.architecture.spec_report`). A run of a selection, or one broken off, writes nothing. Where
several processes share a run (pytest-xdist), each hands its tests their clauses, and the one they report to writes.
"""

import hashlib
import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".spec-results.json"
CLAUSES = ROOT / "docs" / "spec.md"

_CLAUSE_LINE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)
# Options that leave tests out. `-m` is one too, but the project's own addopts hold one: see `_is_full`.
_SELECTING = ("keyword", "deselect", "collectonly", "lf", "failedfirst", "stepwise", "maxfail", "ignore", "ignore_glob")


def clause_ids() -> list[str]:
    """Return the ids of docs/spec.md in its order."""
    return _CLAUSE_LINE.findall(CLAUSES.read_text(encoding="utf-8"))


def tree_hash() -> str:
    """Return a digest over every file of the working tree that git would keep, tracked or new.

    Returns the empty text where git cannot list them: such a tree has no results.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    digest = hashlib.sha256()
    for name in sorted({name for name in listing.stdout.split(b"\0") if name}):
        path = ROOT / name.decode("utf-8", "surrogateescape")
        if path.is_file():
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _markexpr_of(options: list[str]) -> str:
    """Return what `-m` says among options that pytest has split already."""
    found = ""
    for option, value in itertools.pairwise([*options, ""]):
        if option == "-m":
            found = value
    return found


class SpecResults:
    """Collects the outcome of every test that carries ``@pytest.mark.spec``. One a test run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._known = frozenset(clause_ids())
        self._outcomes: dict[str, dict[str, str]] = {}
        self._tree = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Hand each test its clauses, and refuse an id that the specification does not have."""
        for item in items:
            ids = [str(clause) for marker in item.iter_markers("spec") for clause in marker.args]
            unknown = sorted(set(ids) - self._known)
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: docs/spec.md has no clause {', '.join(unknown)}")
            item.user_properties.append(("spec", " ".join(sorted(set(ids)))))

    def pytest_sessionstart(self) -> None:
        # Taken before the tests: a tree that changes under a run is then seen as another tree.
        self._tree = tree_hash() if self._is_full() else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = str(dict(report.user_properties).get("spec", "")).split()
        for clause in ids:
            tests = self._outcomes.setdefault(clause, {})
            before = tests.get(report.nodeid)
            if report.failed:
                tests[report.nodeid] = "failed"
            elif report.when == "call" or report.skipped:
                tests[report.nodeid] = before if before == "failed" else report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        complete = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and not session.shouldstop
        if self._tree and complete and self._outcomes:
            found = {"tree": self._tree, "clauses": {key: self._outcomes[key] for key in sorted(self._outcomes)}}
            RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def _is_full(self) -> bool:
        options = self._config.option
        selected = any(getattr(options, name, None) for name in _SELECTING)
        # The project's own `-m` leaves out what is no part of `make test`; any other one selects.
        selected |= options.markexpr != _markexpr_of(self._config.getini("addopts"))
        all_paths = [str(path) for path in self._config.getini("testpaths")]
        return self._config.args == all_paths and not selected and not hasattr(self._config, "workerinput")
