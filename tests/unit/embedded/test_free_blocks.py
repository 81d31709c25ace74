"""Objects that are made after the holes of the memory are filled lie side by side."""

import subprocess
import sys

import pytest

from soong.orchestrator.embedded.free_blocks import LARGEST_BLOCK

PROGRAM = """
import gc, mmap, sys
from soong.orchestrator.embedded.free_blocks import fill_free_blocks

size = int(sys.argv[1])
scattered = [bytes(size - sys.getsizeof(b"")) for _ in range(4_000)]
del scattered[::3]
gc.collect()
filled = fill_free_blocks()
made = [bytes(size - sys.getsizeof(b"")) for _ in range(400)]
print(filled, len({id(each) // mmap.PAGESIZE for each in made}), mmap.PAGESIZE)
"""


@pytest.mark.parametrize("size", [64, 128, LARGEST_BLOCK])
def test_new_objects_lie_side_by_side(size: int) -> None:
    # In a process of its own: that of a long test run has more holes than are filled.
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(size)], capture_output=True, text=True, check=True)
    filled, pages, page_bytes = map(int, run.stdout.split())

    assert filled > 0
    assert pages <= 2 * (400 * size / page_bytes + 4)
