"""What a process that stays keeps of the cycles that its runs leave."""

import subprocess
import sys

PROGRAM = """
import gc
from collections import deque
from soong.shared.core.startup import settle_gc, tune_gc

class Cycle:
    def __init__(self):
        self.own = self

tune_gc()
loaded = len(gc.get_objects())
settle_gc()
searched = len(gc.get_objects())
recent = deque(maxlen=2000)  # each outlives some searches of the young, as a run does
for _ in range(2_000_000):
    recent.append(Cycle())
print(loaded, searched, gc.get_stats()[2]["collections"])
"""


def test_all_that_a_settled_process_left_behind_is_searched_and_its_modules_are_not() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)

    loaded, searched, full_searches = map(int, ran.stdout.split())
    assert full_searches > 0
    assert searched < loaded / 100
