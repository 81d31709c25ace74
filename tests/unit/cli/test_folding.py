"""Lines are folded into columns, at a space where one is near, in the time of their length."""

import sys
import unicodedata
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.orchestrator.cli.console import cut, folded

CHARACTERS = "ab  漢字é\N{COMBINING ACUTE ACCENT}"


def width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)


def first_piece(line: str, columns: int) -> str:
    """Return the first piece of a line that is wider than the columns."""
    most = max((end for end in range(len(line)) if width(line[:end]) <= columns), default=0)
    space = line.rfind(" ", most // 2, most)
    return line[: space + 1] if space > 0 else line[: max(1, most)]


@given(st.text(CHARACTERS, max_size=40), st.integers(1, 12))
def test_each_piece_takes_what_fits_and_ends_at_a_space_where_one_is_near(line: str, columns: int) -> None:
    expected, rest = [], line
    while width(rest) > columns:
        expected.append(first_piece(rest, columns))
        rest = rest.removeprefix(expected[-1])

    assert folded(line, columns) == [*expected, rest]


@given(st.text(CHARACTERS, max_size=40), st.integers(2, 12))
def test_a_cut_line_fits_and_says_that_it_was_longer(line: str, columns: int) -> None:
    shown = cut(line, columns)

    assert (shown == line) == (width(line) <= columns)
    assert width(shown) <= columns or columns == 2  # a wide character and the mark


@pytest.mark.parametrize("character", ["a", "漢", "a漢"])
def test_a_line_four_times_as_long_takes_four_times_as_many_steps(character: str) -> None:
    short, long = (_calls(character * length) for length in (2_000, 8_000))

    assert long < 6 * short


def _calls(line: str) -> int:
    """Return how many Python functions are called to fold a line; what is quadratic in them takes sixteen times."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        folded(line, 80)
    finally:
        sys.setprofile(None)
    return calls
