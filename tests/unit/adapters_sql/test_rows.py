"""Statements and rows: one text for two dialects, rows of events read as a stranger's, turns of claims."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soong.orchestrator.doctor import machine as checks
from soong.orchestrator.doctor.machine import Level
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.storage.sql.claims.claiming import QueuePosition, ReadyGroup, share_out
from soong.shared.storage.sql.engine.engine import parse_url, refuse_network_file_system
from soong.shared.storage.sql.engine.log_rows import events_of, nodes_of
from soong.shared.storage.sql.engine.row_mapper import pack, plain, unpack
from soong.shared.storage.sql.engine.run_log_buffer import ROW_CHARS, ROW_ENTRIES, RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.tasks.inserts import lane_of


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

    (_, events), _ = buffer.logs()
    rows = list(events)

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


def test_locking_rows_is_not_writing_them() -> None:
    assert not Statement("s", "SELECT 1 FROM a FOR UPDATE OF a").writes
    assert not Statement("s", "SELECT 1 FROM a FOR NO KEY UPDATE").writes
    assert Statement("s", "UPDATE a SET b = 1").writes
    assert Statement("s", "WITH x AS (UPDATE a SET b = 1 RETURNING b) SELECT b FROM x").writes


"""The statements that move what has been locked and read before, and from which statuses."""
"""Moves that one statement makes together, and what lies between."""


@pytest.mark.parametrize("value", ["größer", "\ud800 lone", "\x00", {"a": [1, 2.5, None, True]}, "𝄞"], ids=repr)
def test_json_comes_back_as_it_went(value: object) -> None:
    text = pack(value)

    text.encode()  # what every driver does
    assert unpack(text) == value


def test_packed_json_is_compact_and_has_no_nan() -> None:
    with pytest.raises(ValueError, match=r"nan|JSON"):
        pack(float("nan"))

    assert pack({"a": [1, 2]}) == '{"a":[1,2]}' == json.dumps({"a": [1, 2]}, separators=(",", ":"))


def test_free_text_keeps_all_but_what_no_database_takes() -> None:
    assert plain("größer\n") == "größer\n"
    assert plain("a\x00b") == "a\ufffdb"
    assert "\ud800" not in plain("ä\ud800")


def test_a_lane_is_the_same_whatever_the_order_of_needs() -> None:
    assert lane_of("s", "p", ("a", "b"), "d", "m") == lane_of("s", "p", ("b", "a", "a"), "d", "m")
    assert lane_of("s", "p", ("a",), "d", "m") != lane_of("s", "p", (), "d", "m")
    assert lane_of("s", "p", (), "d", "m") != lane_of("t", "p", (), "d", "m")


@pytest.mark.parametrize("url", ["sqlite:///relative.db", "sqlite://", "mysql://host/db", "not a url"])
def test_anything_else_is_refused_with_what_to_say_instead(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"sqlite|SOONG_DATABASE_URL"):
        parse_url(url)


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
async def test_what_doctor_fails_no_database_is_opened_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/share {tmp_path} {kind} rw 0 0\n", encoding="utf-8")
    monkeypatch.setattr(checks, "file_system_of", lambda path: file_system_of(path, mounts))

    found = await checks.check_home(Settings(agent_home=tmp_path))

    assert (found.level, "PostgreSQL" in found.hint) == (Level.FAIL, True)
    with pytest.raises(InvalidConfigError, match=f"{kind}.*SOONG_DATABASE_URL"):
        refuse_network_file_system(tmp_path / "soong.db", mounts)


def test_a_local_mount_below_a_network_one_is_taken(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/share {tmp_path} nfs rw 0 0\n/dev/vdb {local} ext4 rw 0 0\n", encoding="utf-8")

    refuse_network_file_system(local / "soong.db", mounts)


def test_a_system_without_a_list_of_mounts_is_not_asked(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path / "soong.db", tmp_path / "none")


def make_lane(
    key: str, session: str = "s", *, ready: int = 10, turn: int = 0, head: QueuePosition = (0, 0, 1), scope: str = ""
) -> ReadyGroup:
    return ReadyGroup(key, session, (scope,) if scope else (), ready, turn, [head])


def test_what_a_limit_holds_back_is_not_claimable_work_left_over() -> None:
    lane = make_lane("limited", scope="model:m")

    assert not share_out([lane], 5, {"model:m": 2}, last_turn=0).is_left
    assert share_out([make_lane("free", ready=3)], 2, {}, last_turn=0).is_left
    assert not share_out([make_lane("free", ready=2)], 2, {}, last_turn=0).is_left
