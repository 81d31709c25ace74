"""The encoder of columns and parameters writes what the library's does."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.engine.tasks.status import StepStatus
from soong.shared.storage.sql.engine.json_encoding import encode, encode_ascii, encoder

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_it_writes_what_the_library_writes(value: Any) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert encode_ascii(value) == json.dumps(value, separators=(",", ":"))


def test_words_and_tuples_are_written_as_text_and_lists() -> None:
    assert (
        encode({"status": StepStatus.READY, "pair": ("a", 1), 1: None}) == '{"status":"ready","pair":["a",1],"1":null}'
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="Out of range float values"):
        encode({"cost": [number]})


def test_what_json_has_not_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(TypeError):
        encode({"when": object()})
    with pytest.raises(RecursionError):
        encode(circle)


def test_it_works_without_the_encoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.encoder.c_make_encoder", None)

    assert encoder(is_ascii=False)({"a": ["ü", 1.5]}) == '{"a":["ü",1.5]}'
