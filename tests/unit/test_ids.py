"""Ids: fresh everywhere, but where a run has to repeat itself."""

from base64 import b32hexencode
from itertools import count
from random import getrandbits

from soong.shared.core.identity import base32, ids_from, new_id


def test_ids_sort_by_the_time_they_were_made() -> None:
    made = [new_id("run") for _ in range(100)]

    assert made == sorted(made)
    assert len(set(made)) == 100


def test_ids_come_from_the_source_that_was_given_until_it_is_taken_back() -> None:
    numbers = count(1)

    with ids_from(lambda: f"{next(numbers):04}"):
        given = [new_id("run"), new_id("task")]
    fresh = new_id("run")

    assert given == ["run_0001", "task_0002"]
    assert fresh.startswith("run_0")
    assert len(fresh) == len("run_") + 26


def test_ids_are_in_base_32_as_rfc_4648_has_it() -> None:
    numbers = [0, 1, 2**128 - 1, *(getrandbits(128) for _ in range(1_000))]

    assert [base32(number) for number in numbers] == [
        b32hexencode(number.to_bytes(16, "big"))[:26].decode().lower() for number in numbers
    ]
