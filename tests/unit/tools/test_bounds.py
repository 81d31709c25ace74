from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json, digest, dump
from soong.shared.tools.value_limits import UnfitError, check_incoming, integral, plain, storable

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.spec("SCH-03")
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        pytest.param({"a": "x" * 2_000}, "size", id="text"),
        pytest.param({"x" * 2_000: 1}, "size", id="key"),
        pytest.param(list(range(2_000)), "size", id="items"),
        pytest.param(nested(10_000), "depth", id="10,000 levels"),
        pytest.param([2**53 + 1], "integer", id="integer"),
        pytest.param([float("nan")], "number", id="nan"),
        pytest.param({"a": object()}, "type", id="object"),
        pytest.param({1: 2}, "type", id="key that is no text"),
    ],
)
def test_what_is_too_large_too_deep_or_no_json_is_named(value: Any, rule: str) -> None:
    with pytest.raises(UnfitError) as caught:
        check_incoming(value, max_chars=1_000)

    assert caught.value.rule == rule


@given(JSON)
def test_json_passes_both_ways_unchanged(value: Json) -> None:
    check_incoming(value)

    assert plain(value) == value


@given(JSON)
def test_whole_numbers_become_integers_and_nothing_else_changes(value: Json) -> None:
    assert integral(value) == value
    assert digest(integral(value)) == digest(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param({"a": {"b": [1, object()]}}, "$.a.b[1]: a object is not JSON", id="object"),
        pytest.param({"a": {1: 2}}, "$.a: the key '1' is a int; JSON keys are texts", id="key"),
        pytest.param([float("inf")], "$[0]: inf is not a JSON number", id="infinity"),
        pytest.param([10**5_000], "$[0]: an integer of 16610 bits is too large", id="integer"),
        pytest.param(b"bytes", "$: a bytes is not JSON", id="bytes"),
        pytest.param({"a", "b"}, "$: a set is not JSON", id="set"),
    ],
)
def test_output_that_is_no_json_is_named_with_its_place(value: object, said: str) -> None:
    with pytest.raises(UnfitError) as caught:
        plain(value)

    assert str(caught.value) == said


@pytest.mark.spec("RES-01")
@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_whatever_text_a_tool_returns_can_be_stored(text: str) -> None:
    kept = storable(text)

    assert kept.encode().decode() == kept
    assert storable(kept) is kept


def test_lone_surrogates_are_replaced_in_keys_and_texts_and_tuples_become_lists() -> None:
    assert plain({"\ud800": ("a\udfff", 1)}) == {"\ufffd": ["a\ufffd", 1]}
    assert dump(plain({"nul": "\0"})) == '{"nul":"\\u0000"}'
