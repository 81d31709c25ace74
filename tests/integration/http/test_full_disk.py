"""A database whose disk is full is named to a client, and nothing else of what it reported."""

import pytest

from soong.orchestrator.operations.problems import problem_of
from soong.shared.core.errors import UnavailableError

pytestmark = pytest.mark.spec("OPS-04")


def test_a_full_disk_is_named_and_no_host_of_a_database_is() -> None:
    full = problem_of(UnavailableError("the database did not answer: database or disk is full, at db.internal"))
    other = problem_of(UnavailableError("the database did not answer: db.internal refused"))

    assert (full.status_code, "database or disk is full" in full.detail) == (503, True)
    assert "db.internal" not in full.detail + other.detail
