"""docs/security.md promises nothing without a test that is there."""

import ast
import re
from pathlib import Path

import pytest

from soong.shared.permissions.audit_log import AuditKind
from soong.shared.storage.sql.engine.tables import metadata
from tests.spec_document import ROOT

PAGE = ROOT / "docs" / "security.md"
COMPOSE = "deploy/test-compose.sh"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PART = re.compile(rf"`{COMPOSE}::([^`]+)`")
_DEPLOYMENTS = "## Guarantees per deployment"
FORMS = ("Embedded", "Compose", "Kubernetes")
ACTORS = {"misled model", "hostile plan", "token holder", "taken-over worker"}


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


def rows_of(form: str) -> list[list[str]]:
    """Return the cells of a deployment's table: who, can or cannot, what, shown by."""
    part = PAGE.read_text(encoding="utf-8").partition(_DEPLOYMENTS)[2].partition("\n## ")[0]
    table = part.partition(f"### {form}\n")[2].partition("\n### ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.spec("OPS-12.a")
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_deployment_says_of_everybody_what_they_can_and_cannot(form: str) -> None:
    rows = rows_of(form)

    assert {who for who, *_ in rows} == ACTORS
    assert {verdict for _, verdict, *_ in rows} <= {"can", "cannot"}
    assert [row for row in rows if len(row) != 4 or not row[2]] == []
    assert [row[2] for row in rows if not (_NAMED.search(row[3]) or _PART.search(row[3]))] == []
    assert len(rows) == len({tuple(row[:3]) for row in rows})


def test_a_part_of_the_compose_test_that_the_page_names_is_there() -> None:
    script = (ROOT / COMPOSE).read_text(encoding="utf-8")
    parts = set(re.findall(r'^say "([^"]+)"$', script, re.MULTILINE))

    named_parts = set(_PART.findall(PAGE.read_text(encoding="utf-8")))

    assert named_parts
    assert named_parts - parts == set()


def test_every_kind_of_the_audit_log_and_every_table_of_consent_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    tables = ("permission_requests", "answers", "decisions", "consumptions", "signing_keys", "audit", "reports")

    assert [kind for kind in AuditKind if f"`{kind}`" not in page] == []
    assert [table for table in tables if table not in page or table not in metadata.tables] == []
