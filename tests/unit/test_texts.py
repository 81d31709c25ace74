"""Text from outside: storable, inert, and strict JSON."""

import json
import sys
import tracemalloc
import unicodedata

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import (
    MAX_MARKS,
    MAX_SAFE_INTEGER,
    Json,
    blanked,
    canonical,
    dump,
    fault,
    faults,
    inert,
    inert_json,
    is_ignorable,
    is_seen,
    is_told_apart,
    parse_strict,
)


def test_a_fault_is_shown_with_what_is_around_it() -> None:
    assert fault("a\0b") == r"'a\x00b' holds a NUL character"
    assert fault("a\udcffb") == r"'a\udcffb' holds a lone surrogate, which is not Unicode"
    assert fault("x" * 100 + "\0" + "y" * 100) == f"…{'x' * 30 + chr(0) + 'y' * 29!a}… holds a NUL character"


def test_each_part_of_a_value_is_looked_at_once_and_in_order() -> None:
    twice = ["\0"]
    value = {"a": ["fine", "b\0"], "k\0": "passed over\0", "c": {"d": "\ud800"}, "e": twice, "f": twice, "g": 1}

    found = list(faults(value))

    assert [place for place, _ in found] == [(), ("a", 1), ("c", "d"), ("e", 0)]
    assert found[0][1] == r"the key 'k\x00' holds a NUL character"


def test_a_value_that_holds_itself_ends() -> None:
    value: dict[str, object] = {"a": "\0"}
    value["self"] = value

    assert [place for place, _ in faults(value)] == [("a",)]


DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Default_Ignorable_Code_Point of Unicode 16, from DerivedCoreProperties.txt."""
BLANK = "\u2800\u2d7f\U0001107f\U00016fe4\U0001bc9d\U0001d159\u2028\u2029\x85\x9b\ue000\U0010ffff\ud800\u0378"
"""What fonts draw as nothing, or what is a control, a separator or no character at all."""
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0915\u094d\u200d\u0937"
"""A word with a joiner that parts two letters, and one with a joiner that binds two."""
HIDING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def test_every_character_that_unicode_says_shows_nothing_is_unseen() -> None:
    ignorable = [chr(code) for first, last in DEFAULT_IGNORABLE for code in range(first, last + 1)]
    hiding = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in HIDING]

    assert [char for char in (*ignorable, *BLANK, *hiding) if is_seen(char)] == []


def test_letters_marks_signs_and_the_space_are_seen() -> None:
    assert all(map(is_seen, " aZ0é文ก़\u0301✓→▰…€😀"))
    assert not any(map(is_seen, "\xa0\u2003\u3000\n\t"))


@pytest.mark.parametrize("char", ["\u200b", "\u00ad", "\ufe0f", "\u034f", "\u3164", "\U000e0041"], ids=ascii)
def test_what_may_be_left_out_of_a_name_is_known(char: str) -> None:
    assert is_ignorable(char)
    assert not is_told_apart(f"a{char}b")


@given(st.text() | st.text(st.sampled_from("a1☀👩\u200d\u200c\ufe0f\u20e3\u0301\u094d\u0915م\x1b\n\t\u202e\ud800")))
def test_inert_text_shows_all_that_it_holds(text: str) -> None:
    shown = inert(text)

    bare = "".join(char for char in shown if char not in "\n\t\u200c\u200d\ufe0e\ufe0f")
    assert is_told_apart(bare)
    assert inert(text) == text or not is_told_apart(text) or unicodedata.combining(max(text, key=unicodedata.combining))
    shown.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b[2J\x9b", "a\\x1b[2J\\x9b"),
        ("\u202ex\U000e0041\ud800", "\\u202ex\\U000e0041\\ud800"),
        ("a\xa0b\u3000c", "a\\xa0b\\u3000c"),
        ("\U0001d159\u3164", "\\U0001d159\\u3164"),
        ("lines\n\tstay", "lines\n\tstay"),
        ("👩‍💻 👍🏽‍x ☀️ 1️⃣", "👩‍💻 👍🏽\\u200dx ☀️ 1️⃣"),
        (PERSIAN, PERSIAN),
        ("pa\u200css\u200dword\ufe0f", "pa\\u200css\\u200dword\\ufe0f"),
        ("☀\ufe0f\ufe0f\ufe0f\U000e0101", "☀\ufe0f\\ufe0f\\ufe0f\\U000e0101"),
        ("\ufe0f \u200d☀", "\\ufe0f \\u200d☀"),
        ("☀\u200b\u200d☀", "☀\\u200b\\u200d☀"),
        ("\u2800\u200d\u2800", "\\u2800\\u200d\\u2800"),
    ],
    ids=ascii,
)
def test_only_what_changes_its_neighbours_stays_unseen(text: str, expected: str) -> None:
    assert inert(text) == expected


def test_piles_of_marks_are_spelled() -> None:
    shown = inert("Z" + "\u0335" * 9)

    assert shown == "Z" + "\u0335" * MAX_MARKS + "\\u0335" * (9 - MAX_MARKS)


@given(st.recursive(st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_inert_json_has_the_same_value(value: object) -> None:
    shown = inert_json(json.dumps(value, ensure_ascii=False, indent=2))

    assert json.loads(shown) == value
    assert inert(shown) == shown


def test_inert_json_escapes_what_json_leaves() -> None:
    assert inert_json('"\x7f\x9b\u202e\U000e0041é"') == '"\\u007f\\u009b\\u202e\\udb40\\udc41é"'


def test_a_label_is_one_line_of_what_is_seen() -> None:
    assert blanked("a\nb\tc\x1b[31m\u202ed é☀️") == "a b c [31m d é☀️"


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
        pytest.param("-Infinity", "not a JSON number", id="-inf"),
        pytest.param(str(MAX_SAFE_INTEGER + 1), "beyond 2", id="2^53+1"),
        pytest.param("1" + "0" * 400, "beyond 2", id="10^400"),
        pytest.param("1e400", "too large", id="1e400"),
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
