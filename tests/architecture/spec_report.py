"""`make spec`: one line a clause, ``ID state tests…``, then the totals.

A clause is *proven* when at least one test that carries its id passed and none failed, or when a record of a longer
run in ``docs/proofs`` names it; *failing* when one of its tests failed; *missing* otherwise (a skipped test proves
nothing).
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.spec_plugin import RESULTS, ROOT, clause_ids, tree_hash

PROOFS = ROOT / "docs" / "proofs"
State = Literal["proven", "failing", "missing"]
_PROOF_FIELDS = frozenset({"clauses", "commit", "command", "figures"})


class SpecReportError(RuntimeError):
    """The report cannot be made; the message says what to mend."""


@dataclass(frozen=True, slots=True)
class ClauseReport:
    """One clause with its state and what it stands on."""

    clause: str
    state: State
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.clause, self.state, *self.evidence))


def judge(clause: str, outcomes: Mapping[str, str], proofs: tuple[str, ...]) -> ClauseReport:
    """Decide one clause from its tests' outcomes and the proof records that name it."""
    failed = tuple(sorted(test for test, outcome in outcomes.items() if outcome == "failed"))
    passed = tuple(sorted(test for test, outcome in outcomes.items() if outcome == "passed"))
    if failed:
        return ClauseReport(clause, "failing", failed)
    if passed or proofs:
        return ClauseReport(clause, "proven", passed + proofs)
    return ClauseReport(clause, "missing", ())


def read_proofs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the proof records by clause.

    Raises:
        SpecReportError: a record lacks a field or names a clause that the specification does not have.
    """
    found: dict[str, tuple[str, ...]] = {}
    known = frozenset(clause_ids())
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        absent = sorted(_PROOF_FIELDS - record.keys())
        if absent:
            raise SpecReportError(f"{path}: the record lacks {', '.join(absent)}; add them")
        for clause in record["clauses"]:
            if clause not in known:
                raise SpecReportError(f"{path}: docs/spec.md has no clause {clause!r}; mend the record")
            found[clause] = (*found.get(clause, ()), f"docs/proofs/{path.name}")
    return found


def read_results(*, may_run: bool = True) -> dict[str, dict[str, str]]:
    """Return outcomes by clause and test for this very tree.

    Args:
        may_run: run the tests when this tree has no result yet.

    Raises:
        SpecReportError: this tree has no result.
    """
    tree = tree_hash()
    if not tree:
        raise SpecReportError("git cannot list this tree; make the report in a git checkout")
    found = _results_of(tree)
    if found is None and not may_run:
        raise SpecReportError("this tree has no result of a full test run; run `make test`")
    if found is None:
        print("running the tests: this tree has no result yet …", file=sys.stderr)
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal"]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        found = _results_of(tree)
    if found is None:
        raise SpecReportError("the test run left no result; run `make test` and fix what stops it")
    return found


def _results_of(tree: str) -> dict[str, dict[str, str]] | None:
    if not RESULTS.exists():
        return None
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    if record["tree"] != tree:
        return None
    clauses: dict[str, dict[str, str]] = record["clauses"]
    return clauses


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="spec_report", description=__doc__)
    parser.add_argument(
        "--last-run", action="store_true", help="never run the tests; fail when this tree has no result"
    )
    options = parser.parse_args(arguments)
    try:
        results, proofs = read_results(may_run=not options.last_run), read_proofs(PROOFS)
    except SpecReportError as error:
        print(f"spec: {error}", file=sys.stderr)
        return 1
    reports = [judge(clause, results.get(clause, {}), proofs.get(clause, ())) for clause in clause_ids()]
    for report in reports:
        print(report)
    totals = Counter(report.state for report in reports)
    counted = ", ".join(f"{totals[state]} {state}" for state in ("proven", "failing", "missing"))
    print(f"{len(reports)} clauses: {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
