"""A pattern is compiled by the first look at it, and then is as fast and as typed as any."""

import re

import pytest

from soong.shared.core.lazy_pattern import lazy_pattern


def test_methods_and_attributes_are_those_of_the_pattern() -> None:
    digits = lazy_pattern(r"([0-9]+)x", re.IGNORECASE)

    assert digits.sub("n", "12X 3x") == "n n"
    assert [found[1] for found in digits.finditer("1x2X")] == ["1", "2"]
    assert (digits.pattern, digits.groups, bool(digits.flags & re.IGNORECASE)) == (r"([0-9]+)x", 1, True)
    assert vars(digits)["sub"] == re.compile(r"([0-9]+)x", re.IGNORECASE).sub


def test_bytes_match_bytes() -> None:
    assert lazy_pattern(rb"^a$", re.MULTILINE).search(b"b\na\n") is not None


def test_a_wrong_pattern_is_an_error_at_its_first_use() -> None:
    wrong = lazy_pattern("(")

    with pytest.raises(re.error, match="unterminated"):
        wrong.search("")
