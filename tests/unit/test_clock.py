"""Instants as text."""

import pytest

from soong.shared.core.timing import rfc3339


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_790_000_000_000_000, "2026-09-21T14:13:20Z"),
        (1_790_000_000_500_000, "2026-09-21T14:13:20.500000Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_instants_are_rfc_3339_to_the_microsecond(us: int, text: str) -> None:
    assert rfc3339(us) == text
