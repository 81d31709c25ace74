"""Which modules are mutated, and which tests judge each.

A module that names clauses of docs/spec.md in its text bears them: its judges are the tests that carry one of those
clauses or of their obligations. Tests of the subject's own folder that carry none of them come last.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.spec_document import read_clauses

PRODUCT = ("orchestrator", "shared", "soong", "worker")
FOLDERS = ("tests/unit", "tests/security", "tests/contract", "tests/integration")
QUICK = ("tests/unit/", "tests/security/", "tests/integration/test_worker_policy.py")
"""Judges that need no server, so that a mutant costs seconds; the others are asked about what these did not notice."""

_CLAUSE = re.compile(r"\b[A-Z]{2,4}-\d{1,2}\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """A module with its judges: ``marked`` and ``slow`` carry its clauses, ``others`` are its folder's other tests."""

    path: str
    clauses: tuple[str, ...]
    marked: tuple[str, ...]
    slow: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def subjects(root: Path) -> list[Subject]:
    """Return the modules that bear clauses and have judges, in the order of their paths."""
    known = {clause.id for clause in read_clauses()}
    marks = collected_marks(root)
    found = []
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            name = str(path.relative_to(root))
            clauses = sorted(known.intersection(_CLAUSE.findall(path.read_text(encoding="utf-8"))))
            if clauses:
                found.append(subject_of(name, clauses, marks))
    return [subject for subject in found if subject.marked]


def subject_of(path: str, clauses: Sequence[str], marks: Mapping[str, Sequence[str]]) -> Subject:
    """Return a module with its judges, those of its own test file first."""
    own = Path(path).stem
    marked = [test for test, ids in marks.items() if {each.partition(".")[0] for each in ids} & set(clauses)]
    nearest = sorted(marked, key=lambda test: (f"/test_{own}" not in test, test))
    quick = tuple(test for test in nearest if test.startswith(QUICK))
    slow = tuple(test for test in nearest if not test.startswith(QUICK))
    folders = [f"tests/unit/{part.removesuffix('.py')}/" for part in reversed(Path(path).parts)]
    folder = next((each for each in folders if any(test.startswith(each) for test in marks)), "none")
    others = sorted(test for test in marks if test.startswith(folder) and test not in set(marked))
    return Subject(path, tuple(clauses), quick, slow, tuple(others))


def collected_marks(root: Path) -> dict[str, list[str]]:
    """Return the ids that each test function carries, by its node id without parameters."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--collect-only", "-p", "tests.mutation.marks", *FOLDERS]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("MARKS ")]
    if not lines:
        raise RuntimeError(f"the tests cannot be collected:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    marks: defaultdict[str, list[str]] = defaultdict(list)
    for test, ids in json.loads(lines[0].removeprefix("MARKS ")):
        marks[test.partition("[")[0]] += ids
    return dict(marks)
