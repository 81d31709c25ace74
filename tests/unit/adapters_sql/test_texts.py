"""Text on its way into rows."""

import json

import pytest

from soong.shared.storage.sql.engine.row_mapper import pack, plain, unpack
from soong.shared.storage.sql.tasks.inserts import lane_of


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
