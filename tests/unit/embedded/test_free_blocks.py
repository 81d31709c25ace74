"""Objects that are made after the holes of the memory are filled lie side by side."""

import gc
import mmap
import sys

import pytest

from soong.orchestrator.embedded.free_blocks import LARGEST_BLOCK, fill_free_blocks


@pytest.mark.parametrize("size", [64, 128, LARGEST_BLOCK])
def test_new_objects_lie_side_by_side(size: int) -> None:
    scattered = [bytes(size - sys.getsizeof(b"")) for _ in range(4_000)]
    del scattered[::3]
    gc.collect()
    assert fill_free_blocks() > 0

    made = [bytes(size - sys.getsizeof(b"")) for _ in range(400)]

    pages = {id(each) // mmap.PAGESIZE for each in made}
    assert len(pages) <= 2 * (400 * size / mmap.PAGESIZE + 4)
