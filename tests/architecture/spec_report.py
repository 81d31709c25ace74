"""`make spec`: the state of each clause of docs/spec.md, and each obligation that nothing proves.

An obligation is proven by a test that carries its id and passed, or by a record of a longer run that still counts
(`tests.architecture.spec_proofs`). A clause is *failing* when a test of it failed, *proven* when each of its
obligations is, *partial* when something of it passed, *missing* otherwise. A skipped test proves nothing.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.architecture.spec_proofs import ProofRecord, ProofRecordError, read_proofs
from tests.spec_document import ROOT, Clause, Obligation, SpecFormatError, read_clauses
from tests.spec_plugin import RESULTS, tree_hash

State = Literal["proven", "partial", "failing", "missing"]
STATES: tuple[State, ...] = ("proven", "partial", "failing", "missing")
Marks: TypeAlias = Mapping[str, Mapping[str, str]]
"""Outcomes by id of the specification and test."""


class SpecReportError(RuntimeError):
    """The report cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ClauseReport:
    """One clause: its state, its unproven obligations, its failed tests, and by id what is ``evidence``."""

    clause: Clause
    state: State
    unproven: tuple[Obligation, ...]
    failed: tuple[str, ...]
    evidence: Mapping[str, tuple[str, ...]]

    def lines(self, *, with_tests: bool = False) -> Iterator[str]:
        """Give the clause's line, then one per failed test and per unproven obligation."""
        count = len(self.clause.obligations)
        yield f"{self.clause.id} {self.state} {count - len(self.unproven)}/{count}"
        for test in self.failed:
            yield f"  failed: {test}"
        for obligation in self.unproven:
            yield f"  {obligation.id} has no proof: {obligation.text}"
        for named, tests in self.evidence.items() if with_tests else ():
            yield from (f"  {named} by {test}" for test in tests)


def judge(clause: Clause, marks: Marks, records: Sequence[ProofRecord] = ()) -> ClauseReport:
    """Decide one clause from the outcomes of its tests and the records that name it."""
    outcomes = [(named, test, outcome) for named in clause.ids for test, outcome in marks.get(named, {}).items()]
    failed = tuple(sorted({test for _, test, outcome in outcomes if outcome == "failed"}))
    evidence = {named: _evidence(named, marks, records) for named in clause.ids}
    evidence = {named: tests for named, tests in evidence.items() if tests}
    unproven = tuple(each for each in clause.obligations if each.id not in evidence)
    state: State = "missing"
    if failed:
        state = "failing"
    elif not unproven:
        state = "proven"
    elif evidence:
        state = "partial"
    return ClauseReport(clause, state, unproven, failed, evidence)


def _evidence(named: str, marks: Marks, records: Sequence[ProofRecord]) -> tuple[str, ...]:
    passed = sorted(test for test, outcome in marks.get(named, {}).items() if outcome == "passed")
    counted = [f"docs/proofs/{record.name}" for record in records if named in record.ids and not record.stale]
    return (*passed, *counted)


def read_results(*, may_run: bool = True) -> Marks:
    """Return outcomes by id and test for this very tree.

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


def _results_of(tree: str) -> Marks | None:
    if not RESULTS.exists():
        return None
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    if record["tree"] != tree:
        return None
    marks: Marks = record["marks"]
    return marks


def report_lines(reports: Sequence[ClauseReport], records: Sequence[ProofRecord], *, with_tests: bool) -> Iterator[str]:
    """Give the report: clauses, stale records, totals."""
    for report in reports:
        yield from report.lines(with_tests=with_tests)
    for record in records:
        if record.stale:
            yield f"docs/proofs/{record.name} is stale and proves nothing: {record.stale}"
    totals = Counter(report.state for report in reports)
    count = sum(len(report.clause.obligations) for report in reports)
    open_ones = sum(len(report.unproven) for report in reports)
    yield f"{len(reports)} clauses: {', '.join(f'{totals[state]} {state}' for state in STATES)}"
    yield f"{count} obligations: {count - open_ones} proven, {open_ones} without a proof"


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="spec_report", description=__doc__)
    parser.add_argument("--last-run", action="store_true", help="fail when this tree has no result; run nothing")
    parser.add_argument("--tests", action="store_true", help="print the tests and records of each id as well")
    options = parser.parse_args(arguments)
    try:
        marks, records = read_results(may_run=not options.last_run), read_proofs()
        reports = [judge(clause, marks, records) for clause in read_clauses()]
    except (SpecReportError, ProofRecordError, SpecFormatError) as error:
        print(f"spec: {error}", file=sys.stderr)
        return 1
    for line in report_lines(reports, records, with_tests=options.tests):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
