"""Which questions are shown one at a time (PER-07)."""

import pytest
from msgspec.structs import replace

from soong.orchestrator.approvals.responders import lane_of
from tests.unit.permissions.test_signing import make_request


@pytest.mark.spec("PER-07")
def test_questions_share_a_lane_only_where_one_session_grant_answers_them_all() -> None:
    first = replace(make_request(), id="1", tool="code.write_file", scope="/p/a")

    assert lane_of(first) == lane_of(replace(first, id="2"))
    assert lane_of(first) != lane_of(replace(first, id="2", scope="/p/b"))
    assert lane_of(first) != lane_of(replace(first, id="2", tool="code.edit_file"))
    assert lane_of(replace(first, scope="")) != lane_of(replace(first, id="2", scope=""))
