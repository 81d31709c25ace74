import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json, digest, dump
from soong.shared.tools.value_limits import check_incoming, integral, plain, storable

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


@given(JSON)
def test_json_passes_both_ways_unchanged(value: Json) -> None:
    check_incoming(value)

    assert plain(value) == value


@given(JSON)
def test_whole_numbers_become_integers_and_nothing_else_changes(value: Json) -> None:
    assert integral(value) == value
    assert digest(integral(value)) == digest(value)


@pytest.mark.spec("RES-01")
@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_whatever_text_a_tool_returns_can_be_stored(text: str) -> None:
    kept = storable(text)

    assert kept.encode().decode() == kept
    assert storable(kept) is kept


def test_lone_surrogates_are_replaced_in_keys_and_texts_and_tuples_become_lists() -> None:
    assert plain({"\ud800": ("a\udfff", 1)}) == {"\ufffd": ["a\ufffd", 1]}
    assert dump(plain({"nul": "\0"})) == '{"nul":"\\u0000"}'
