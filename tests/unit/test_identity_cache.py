"""What is kept of objects by their identity."""

from itertools import count

import pytest

from soong.shared.core.identity_cache import IdentityCache


def test_a_value_is_made_once_for_an_object() -> None:
    numbers = count(1)
    cache = IdentityCache[list[int], int](lambda _source: next(numbers))
    source = [1]

    assert [cache(source), cache(source), cache([1])] == [1, 1, 2]


def test_of_more_objects_than_it_keeps_the_oldest_is_made_anew() -> None:
    numbers = count(1)
    cache = IdentityCache[list[int], int](lambda _source: next(numbers), size=2)
    first, second, third = [1], [2], [3]

    assert [cache(one) for one in (first, second, third, second, first)] == [1, 2, 3, 2, 4]


def test_an_object_that_is_kept_gives_its_id_to_no_other() -> None:
    cache = IdentityCache[list[int], int](sum)

    assert [cache([number]) for number in range(200)] == list(range(200))


def test_a_failure_is_not_kept() -> None:
    source: list[int] = []
    cache = IdentityCache[list[int], int](lambda given: given[0])
    with pytest.raises(IndexError):
        cache(source)
    source.append(5)

    assert cache(source) == 5
