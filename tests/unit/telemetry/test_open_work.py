"""The state of a reader of logs: whatever is open is there again after it was stored."""

import json

from msgspec.structs import fields

from soong.orchestrator.telemetry.spans import OpenSpan, OpenWork


def test_what_is_open_is_stored_whole_and_read_again() -> None:
    span = OpenSpan(5, {"tool": "code.read_file"}, {"fence": 2})
    notes = [("asked", 7, "code.read_file")]
    work = OpenWork(3, span, span, {"call_1": span}, {"req_1": span}, notes, 8, 9, "worker_1")
    assert all(getattr(work, one.name) != getattr(OpenWork(), one.name) for one in fields(OpenWork))

    stored = json.loads(json.dumps(work.as_json()))

    assert stored.keys() == {one.name for one in fields(OpenWork)}
    assert OpenWork.from_json(stored) == work


def test_nothing_is_stored_of_a_run_that_has_nothing_open() -> None:
    assert OpenWork().as_json() == {}
    assert OpenWork.from_json({}) == OpenWork()
