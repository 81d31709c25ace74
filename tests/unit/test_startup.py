"""What a process that stays keeps of the cycles that its runs leave."""

import subprocess
import sys

PROGRAM = """
import gc
from collections import deque
from soong.shared.core.startup import begin, settle_gc

class Cycle:
    def __init__(self):
        self.own = self

begin()
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


STARTING = """
import gc
from soong.shared.core.startup import STARTING_OBJECTS, YOUNG_OBJECTS, begin, leave_gc

begin()
before = gc.get_stats()[0]["collections"]
modules = [[number] for number in range(STARTING_OBJECTS * 3 // 4)]
while_starting = gc.get_stats()[0]["collections"] - before
runs = [[number] for number in range(STARTING_OBJECTS)]
later = gc.get_stats()[0]["collections"] - before
stays = gc.get_threshold() == YOUNG_OBJECTS
leave_gc()
print(while_starting, later, stays, gc.isenabled(), gc.get_freeze_count() > len(modules) + len(runs))
"""


def test_a_start_is_not_searched_for_cycles_nor_an_end_and_a_command_that_stays_is() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", STARTING], capture_output=True, text=True, check=True)

    while_starting, later, *rest = ran.stdout.split()
    assert int(while_starting) == 0
    assert int(later) > 1
    assert rest == ["True", "False", "True"]
