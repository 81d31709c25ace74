"""How clauses are judged."""

import json
from pathlib import Path

import pytest

from tests.architecture.spec_report import SpecReportError, judge, read_proofs


def test_a_clause_with_a_passing_test_is_proven() -> None:
    report = judge("PER-05", {"b": "passed", "a": "passed", "c": "skipped"}, ())

    assert str(report) == "PER-05 proven a b"


def test_one_failing_test_makes_a_clause_failing() -> None:
    report = judge("PER-05", {"a": "passed", "b": "failed"}, ("docs/proofs/soak.json",))

    assert str(report) == "PER-05 failing b"


def test_skipped_tests_prove_nothing() -> None:
    assert judge("PER-05", {"a": "skipped"}, ()).state == "missing"


def test_a_record_of_a_longer_run_proves_its_clauses(tmp_path: Path) -> None:
    record = {"clauses": ["OPS-03"], "commit": "0" * 40, "command": "make bench", "figures": {"workers": 4}}
    (tmp_path / "scale.json").write_text(json.dumps(record))

    proofs = read_proofs(tmp_path)

    assert str(judge("OPS-03", {}, proofs["OPS-03"])) == "OPS-03 proven docs/proofs/scale.json"


def test_a_record_without_its_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scale.json").write_text(json.dumps({"clauses": ["OPS-03"], "command": "x", "figures": {}}))

    with pytest.raises(SpecReportError, match="lacks commit"):
        read_proofs(tmp_path)


def test_a_record_for_an_unknown_clause_is_refused(tmp_path: Path) -> None:
    record = {"clauses": ["OPS-99"], "commit": "x", "command": "x", "figures": {}}
    (tmp_path / "scale.json").write_text(json.dumps(record))

    with pytest.raises(SpecReportError, match="OPS-99"):
        read_proofs(tmp_path)
