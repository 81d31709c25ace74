import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.sandbox.redact import decoded, inert_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x1b]8;;http://evil\x1b\\good\x1b]8;;\x1b\\", "good"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b]0;never ended\nthe next line", "0;never ended\nthe next line"),
        ("\x1b(Bcharset\x1b7\x1bc", "charset"),
        ("evil command\rls", "evil command\nls"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\bb\0\x07\x7f", "a\\x08b\\x00\\x07\\x7f"),
        ("\x1b", "\\x1b"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\x85", "\\x85"),
        ("naïve 文字 👩‍💻", "naïve 文字 👩‍💻"),
        ("\u3000段落\xa0!", "\u3000段落\xa0!"),
        ("a\u3164b\U0001d159", "a\\u3164b\\U0001d159"),
        ("\ud800", "\ufffd"),
    ],
    ids=ascii,
)
@pytest.mark.spec("CMD-01")
def test_output_is_shown_without_what_a_terminal_obeys(text: str, expected: str) -> None:
    assert inert_text(text) == expected


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]PX0;m\\\x07\x9c\r\n\b a\u202e\u2066\ud800\U000e0041é")))
def test_nothing_that_a_terminal_obeys_is_left_and_nothing_changes_a_second_time(text: str) -> None:
    shown = inert_text(text)

    assert not any((ord(char) < 0x20 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert not set(shown) & set("\u202e\u2066\ud800\U000e0041")
    assert inert_text(shown) == shown


def test_a_flood_of_unfinished_sequences_takes_linear_time() -> None:
    begun = time.monotonic()

    inert_text("\x1b]" * 500_000 + "\x1b[" + "0;" * 500_000)

    assert time.monotonic() - begun < 5


def test_bytes_that_are_not_text_survive_decoding() -> None:
    output = bytes(range(256))

    assert decoded(output).encode("utf-8", "surrogateescape") == output
