"""docs/security.md promises nothing without a test that is there."""

import ast
import re
from pathlib import Path

import pytest

from shared.adapters.sql.rights import WORKER
from shared.audit.entry import AuditKind
from tests.spec_document import ROOT

PAGE = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def named() -> list[tuple[str, str]]:
    return sorted(set(_NAMED.findall(PAGE.read_text(encoding="utf-8"))))


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("path", "name"), named(), ids=[name for _, name in named()])
def test_a_test_that_the_page_names_is_there(path: str, name: str) -> None:
    assert name in functions(ROOT / path)


def test_every_threat_names_at_least_one_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("## Threats")[2].partition("## ")[0]

    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]

    assert len(rows) >= 25
    assert [row.split("|")[1].strip() for row in rows if not _NAMED.search(row)] == []


def test_every_kind_of_the_audit_log_and_every_table_of_consent_stands_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    tables = ("permission_requests", "answers", "decisions", "consumptions", "signing_keys", "audit", "reports")

    assert [kind for kind in AuditKind if f"`{kind}`" not in page] == []
    assert [table for table in tables if table not in page or table not in WORKER] == []
