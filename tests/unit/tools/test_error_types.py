"""The set of error types is closed, and each is made somewhere or kept for something (RES-05)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from soong.shared.tools.result import RESERVED, ErrorType
from tests.spec_document import ROOT, read_clauses

PACKAGES = ("shared", "worker", "orchestrator")
NOT_MAKERS = frozenset({"shared/tools/result.py"})
"""Where types are listed; that makes none of them."""

RETRYABLE = {
    "permission_timeout",
    "permission_no_callback",
    "permission_failed",
    "permission_stale",
    "timeout",
    "not_run",
    "stream_discarded",
    "server_unavailable",
    "step_not_claimable",
}


def named_types(path: Path) -> Iterator[str]:
    """Yield the types that a file makes: by their enum, and as the refusals of paths that map to them."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "ErrorType" in text or path.name == "descriptors.py" else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorType":
            yield node.attr.lower()
        if isinstance(node, ast.Constant) and path.name == "descriptors.py":
            yield str(node.value)


def made() -> set[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    makers = [path for path in files if str(path.relative_to(ROOT)) not in NOT_MAKERS]
    return {name for path in makers for name in named_types(path)} & {error.value for error in ErrorType}


@pytest.mark.spec("RES-05.a")
def test_the_error_types_are_those_of_the_specification() -> None:
    (clause,) = [clause for clause in read_clauses() if clause.id == "RES-05"]
    listed = clause.obligations[0].text.partition(": ")[2].rstrip(".").split(", ")

    assert sorted(listed) == sorted(error.value for error in ErrorType)


@pytest.mark.spec("RES-05.a")
def test_every_error_type_is_made_somewhere_or_kept_for_a_reason() -> None:
    assert {error.value for error in ErrorType} - made() == {error.value for error in RESERVED}


@pytest.mark.spec("RES-05.b")
@pytest.mark.parametrize("error", ErrorType, ids=lambda error: error.value)
def test_only_what_may_pass_by_itself_is_retryable(error: ErrorType) -> None:
    assert error.is_retryable == (error.value in RETRYABLE)
