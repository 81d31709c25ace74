"""Rows of events: each holds those of one write, and is read as a stranger's."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from soong.shared.core.jsontext import MAX_DEPTH
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.storage.sql.engine.rows import events_of
from soong.shared.storage.sql.engine.run_log_buffer import ROW_CHARS, ROW_EVENTS, RunLogBuffer


def row(seq: int, preceding: str = "", *, run_id: str = "r", data: str = "{}") -> Any:
    return SimpleNamespace(run_id=run_id, seq=seq, type="own", time_us=5, data=data, preceding=preceding)


def test_a_row_gives_its_earlier_events_and_then_its_own() -> None:
    found = list(events_of([row(3, '[["first",1,{"a":1}],["second",2,{}]]')]))

    assert [(event.seq, event.type, event.time_us) for event in found] == [
        (1, "first", 1),
        (2, "second", 2),
        (3, "own", 5),
    ]
    assert found[0].data == {"a": 1}


def test_a_page_that_begins_within_a_row_has_the_rest_of_it() -> None:
    rows = [row(3, '[["first",1,{}],["second",2,{}]]'), row(1, run_id="other")]

    assert [event.seq for event in events_of(rows, after=1)] == [2, 3, 1]


@pytest.mark.spec("OPS-12.d")
def test_a_row_takes_no_number_from_the_rows_before_it() -> None:
    rows = [row(1), row(2), row(3, '[["forged",1,{}],["forged",2,{}],["forged",2,{}]]')]

    assert [(event.seq, event.type) for event in events_of(rows)] == [(1, "own"), (2, "own"), (3, "own")]


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize(
    "entry", ["1", '["a",1]', '["a",-1,{}]', '["a",1,[]]', "[1,1,{}]", '["a","x",{}]', "null"], ids=str
)
def test_a_malformed_earlier_event_says_so_under_its_number(entry: str) -> None:
    malformed, own = events_of([row(2, f"[{entry}]")])

    assert (malformed.seq, malformed.type, malformed.data["what"]) == (1, EventType.SECURITY, "malformed_row")
    assert (own.seq, own.type) == (2, "own")


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("preceding", ["no json", "{}", "[" * 5000], ids=["text", "object", "deep"])
def test_what_is_no_list_of_events_makes_the_row_malformed(preceding: str) -> None:
    (event,) = events_of([row(2, preceding)])

    assert (event.seq, event.type) == (2, EventType.SECURITY)
    assert "preceding" in str(event.data["reason"])


def test_an_earlier_event_may_be_as_deep_as_any() -> None:
    data: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        data = {"d": data}

    first, _ = events_of([row(2, json.dumps([["deep", 1, data]]))])

    assert first.data == data


def test_events_of_one_write_share_rows_up_to_a_size() -> None:
    buffer = RunLogBuffer(9)
    buffer.add("r", events=[NewEvent("short", {"n": n}) for n in range(ROW_EVENTS + 1)])
    buffer.add("wide", events=[NewEvent("wide", {"text": "x" * ROW_CHARS}), NewEvent("last", time_us=4)])

    rows = list(buffer.event_rows())

    assert [(run_id, back) for run_id, back, *_ in rows] == [("r", 1), ("r", 0), ("wide", 1), ("wide", 0)]
    assert len(json.loads(str(rows[0][-1]))) == ROW_EVENTS - 1
    assert [row[-1] for row in rows[1:]] == ["", "", ""]
    assert [row[3] for row in rows] == [9, 9, 9, 4]
