"""Which test carries which id of docs/spec.md, and how it ended: ``.spec-results.json``, keyed by the tree's content.

Written after each full run; `make spec` reads it (`tests.architecture.spec_report`). A run of a selection, or one
broken off, writes nothing. Where several processes share a run (pytest-xdist), the one that they report to writes.
"""

import hashlib
import itertools
import json
import subprocess

import pytest

from tests.spec_document import ROOT, known_ids

ONE_PLUGIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""For a pytest that a test starts: to import all installed plugins is three quarters of what a small run costs."""

RESULTS = ROOT / ".spec-results.json"

# Options that leave tests out. `-m` is one too, but the project's own addopts hold one: see `_is_full`.
_SELECTING = ("keyword", "deselect", "collectonly", "lf", "failedfirst", "stepwise", "maxfail", "ignore", "ignore_glob")


def tree_hash() -> str:
    """Return a digest over every file of the working tree that git would keep, tracked or new."""
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
    """Collects the outcome of every test that carries ``@pytest.mark.spec``. One per test run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._known = known_ids()
        self._outcomes: dict[str, dict[str, str]] = {}
        self._tree = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Hand each test its ids, and refuse one that the specification does not have."""
        for item in items:
            ids = [str(named) for marker in item.iter_markers("spec") for named in marker.args]
            unknown = sorted(set(ids) - self._known)
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: docs/spec.md has no {', '.join(unknown)}")
            item.user_properties.append(("spec", " ".join(sorted(set(ids)))))

    def pytest_sessionstart(self) -> None:
        # Taken before the tests: a tree that changes under a run is then seen as another tree.
        self._tree = tree_hash() if self._is_full() else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = str(dict(report.user_properties).get("spec", "")).split()
        for named in ids:
            tests = self._outcomes.setdefault(named, {})
            before = tests.get(report.nodeid)
            if report.failed:
                tests[report.nodeid] = "failed"
            elif report.when == "call" or report.skipped:
                tests[report.nodeid] = before if before == "failed" else report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        complete = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and not session.shouldstop
        if self._tree and complete and self._outcomes:
            found = {"tree": self._tree, "marks": {key: self._outcomes[key] for key in sorted(self._outcomes)}}
            RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def _is_full(self) -> bool:
        options = self._config.option
        selected = any(getattr(options, name, None) for name in _SELECTING)
        # The project's own `-m` leaves out what is no part of `make test`; any other one selects.
        selected |= options.markexpr != _markexpr_of(self._config.getini("addopts"))
        all_paths = [str(path) for path in self._config.getini("testpaths")]
        return self._config.args == all_paths and not selected and not hasattr(self._config, "workerinput")
