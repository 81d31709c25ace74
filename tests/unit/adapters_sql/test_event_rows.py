"""Rows of events and of nodes: each holds those of one write, and is read as a stranger's."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from soong.shared.core.identity import Role, RunIdentity
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import NewRun, RunStatus
from soong.shared.storage.sql.engine.log_rows import events_of, nodes_of
from soong.shared.storage.sql.engine.run_log_buffer import ROW_CHARS, ROW_ENTRIES, RunLogBuffer


def row(seq: int, preceding: str = "", *, run_id: str = "r", data: str = "{}", **more: str) -> Any:
    own = {"run_id": run_id, "seq": seq, "type": "own", "time_us": 5, "data": data, "preceding": preceding}
    return SimpleNamespace(**own | {"step_key": ""} | more)


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


def test_events_of_one_write_share_rows_up_to_a_size() -> None:
    buffer = RunLogBuffer(9)
    buffer.add("r", events=[NewEvent("short", {"n": n}) for n in range(ROW_ENTRIES + 1)])
    buffer.add("wide", events=[NewEvent("wide", {"text": "x" * ROW_CHARS}), NewEvent("last", time_us=4)])

    rows = list(buffer.event_rows())

    assert [(row[0], row[-1]) for row in rows] == [("r", 1), ("r", 0), ("wide", 1), ("wide", 0)]
    assert len(json.loads(str(rows[0][4]))) == ROW_ENTRIES - 1
    assert [row[4] for row in rows[1:]] == ["", "", ""]
    assert [row[2] for row in rows] == [9, 9, 9, 4]


def node_row(number: int, preceding: str = "", *, payload: str = "{}") -> Any:
    names = {"run_id": "r", "number": number, "parent": number - 1, "kind": "assistant", "created_us": 5}
    return SimpleNamespace(**names, payload=payload, preceding=preceding)


@pytest.mark.spec("OPS-12.d")
def test_a_row_takes_no_number_from_the_nodes_before_it() -> None:
    rows = [node_row(1), node_row(2, '[[0,"user",{"forged":1}],[0,"user",{"forged":2}]]')]

    assert [(node.number, node.payload) for node in nodes_of(rows)] == [(1, {}), (2, {})]


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize(
    "entry",
    ["1", '[0,"user"]', '[0,"unknown",{}]', '[0,"user",[]]', '[1,"user",{}]', '[-1,"user",{}]', "null"],
    ids=str,
)
def test_a_malformed_earlier_node_says_so_under_its_number(entry: str) -> None:
    malformed, own = nodes_of([node_row(2, f"[{entry}]")])

    assert (malformed.number, malformed.parent, "malformed_row" in malformed.payload) == (1, 0, True)
    assert (own.number, own.payload) == (2, {})


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("preceding", ["no json", "{}", "[" * 5000], ids=["text", "object", "deep"])
def test_what_is_no_list_of_nodes_makes_the_row_malformed(preceding: str) -> None:
    (node,) = nodes_of([node_row(2, preceding)])

    assert "preceding" in str(node.payload["malformed_row"])


def test_nodes_of_one_write_share_rows_up_to_a_size_and_to_a_result() -> None:
    buffer = RunLogBuffer(9)
    buffer.add("r", nodes=[NewNode(NodeKind.USER, {}), NewNode(NodeKind.RESULT, {}), NewNode(NodeKind.USER, {})])
    buffer.add("wide", nodes=[NewNode(NodeKind.USER, {"x": "x" * ROW_CHARS}), NewNode(NodeKind.USER, {}, parent=0)])

    rows = [(run_id, back, parent, preceding) for run_id, parent, _, _, preceding, back, _ in buffer.node_rows()]

    assert rows == [("r", 1, None, '[[null,"user",{}]]'), ("r", 0, None, ""), ("wide", 1, None, ""), ("wide", 0, 0, "")]


def new_run(run_id: str, *, step_key: str = "t/a") -> NewRun:
    identity = RunIdentity("s", run_id, "agent", Role.WORKER, "", "", "", "t", step_key, "a", "")
    return NewRun(identity, surface={}, token="", attempt=2)


def test_the_first_events_of_a_run_have_a_row() -> None:
    buffer = RunLogBuffer(9)
    buffer.create(new_run("r", step_key="t/a"), RunStatus.QUEUED)
    buffer.note("r", EventType.STEP_CREATED, step="t/a")

    (stored,) = buffer.event_rows()

    assert (stored[1], json.loads(str(stored[4]))) == ("step_created", [["run_created", 9, {"attempt": 2}]])


def test_an_event_of_its_own_step_need_not_name_it() -> None:
    told = '[["step_ready",1,{}],["step_claimed",2,{"step":"t/b"}],["tool_started",3,{}]]'
    rows = [row(4, told, data='{"fence":1}', type="run_started", step_key="t/a")]

    assert [dict(event.data) for event in events_of(rows)] == [
        {"step": "t/a"},
        {"step": "t/b"},
        {},
        {"step": "t/a", "fence": 1},
    ]
