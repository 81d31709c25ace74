import tracemalloc

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json, canonical, digest, dump, parse_strict

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**52), 2**52) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('{"a": 1, "a": 2}', "duplicate key", id="duplicate key"),
        pytest.param("NaN", "not a JSON number", id="nan"),
        pytest.param("[Infinity]", "not a JSON number", id="inf"),
        pytest.param("-Infinity", "not a JSON number", id="-inf"),
        pytest.param(str(MAX_SAFE_INTEGER + 1), "beyond 2", id="2^53+1"),
        pytest.param("1" + "0" * 400, "beyond 2", id="10^400"),
        pytest.param("1e400", "too large", id="1e400"),
        pytest.param('{"a": [-1E999]}', "too large", id="-1E999"),
        pytest.param('"\\ud800"', "lone surrogate", id="escaped"),
        pytest.param('{"\\uDFFF": 1}', "lone surrogate", id="key"),
        pytest.param('"\ud800"', "not UTF-8", id="raw"),
        pytest.param("[" * 100_000, "deeper|Expecting", id="bomb"),
        pytest.param("[" * 300 + "]" * 300, "deeper than 200", id="deep"),
        pytest.param("{", "Expecting", id="half"),
        pytest.param("", "Expecting", id="empty"),
        pytest.param('{"a": 1} {"b": 2}', "Extra data", id="two documents"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InvalidJsonError, match=problem):
        parse_strict(text)


def test_a_document_over_the_size_is_refused_unread() -> None:
    with pytest.raises(InvalidJsonError, match="at most 10 are read"):
        parse_strict('"' + "x" * 20 + '"', max_bytes=10)


@pytest.mark.parametrize("document", [b'"\xff\xfe\xfa"', '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}"], ids=repr)
def test_bytes_that_are_not_utf8_are_refused(document: bytes) -> None:
    with pytest.raises(InvalidJsonError):
        parse_strict(document)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_strict('"\\ud83d\\ude00"') == "\U0001f600"


def test_a_document_of_a_hundred_megabytes_costs_no_copy() -> None:
    document = "[" + "1," * 50_000_000 + "1]"
    tracemalloc.start()

    with pytest.raises(InvalidJsonError, match="are read"):
        parse_strict(document)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1024 * 1024


@given(JSON)
def test_what_is_written_reads_the_same(value: object) -> None:
    assert parse_strict(dump(value)) == value


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 9), min_size=2, max_size=5))
def test_the_order_of_keys_does_not_change_the_digest(value: dict[str, int]) -> None:
    turned = dict(reversed(list(value.items())))

    assert canonical(value) == canonical(turned)
    assert digest(value) == digest(turned)


@pytest.mark.parametrize("value", [float("nan"), 2**60, "\ud800"], ids=["nan", "2^60", "surrogate"])
def test_what_has_no_canonical_form_is_refused(value: float | str) -> None:
    with pytest.raises(InvalidJsonError, match="no canonical form"):
        canonical(value)


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**54), 2**54) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(_ANY_JSON)
@example({"\ud7ff": 1, "\U00010000": 2, "\uffff": 3})
@example(['\x00\x1f\x7f\u2028"\\/\b\f\n\r\t', "\ud800"])
def test_the_quick_canonical_form_is_that_of_the_rfc(value: Json) -> None:
    try:
        expected = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        with pytest.raises(InvalidJsonError):
            canonical(value)
    else:
        assert canonical(value) == expected
