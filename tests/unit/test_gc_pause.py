"""Pauses of the cycle collector: for many items, nested, and only as long as they last."""

import gc
from collections.abc import Iterator

import pytest

from soong.shared.core.gc_pause import MANY, gc_pause


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_nothing_is_searched_for_cycles_until_the_last_pause_has_ended() -> None:
    with gc_pause(MANY):
        with gc_pause(MANY):
            assert not gc.isenabled()
        assert not gc.isenabled()

    assert gc.isenabled()


def test_a_few_items_are_no_reason_for_a_pause() -> None:
    with gc_pause(MANY - 1):
        assert gc.isenabled()


def test_a_pause_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), gc_pause(MANY):
        raise ValueError("wrong")

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()

    with gc_pause(MANY):
        pass

    assert not gc.isenabled()
