import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.jsontext import MAX_MARKS, blanked, inert, inert_json, is_ignorable, is_seen, is_told_apart

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
