"""Ids: fresh everywhere, but where a run has to repeat itself."""

from itertools import count

from soong.shared.core.ids import ids_from, new_id


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
