"""Measuring from outside: time, CPU of process trees, what Redis counted, what the store counted."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

import psutil
import redis

from benchmarks.workbench import Sample, Workbench
from benchmarks.workload import Workload

QUIET_FOR_S: Final = 0.1
QUIET_CPU_S: Final = 0.01
"""What processes that rest may use in ``QUIET_FOR_S``: the grain in which the kernel counts."""
SETTLING_S: Final = 30.0


class RestlessError(RuntimeError):
    """The processes of a workbench go on working long after their last workload."""


def measure(workbench: Workbench, workload: Workload, broker: redis.Redis) -> Sample:
    """Run ``workload`` once between two readings of every counter.

    Time counts up to the result, and so does the CPU time of this process, which then only measures. Other costs count
    until all processes rest: some of a task's work may come after its result, and it must not slow down whatever is
    measured next.
    """
    processes = (*workbench.processes(), int(broker.info("server")["process_id"]))
    before = (workbench.transactions(), workbench.log_bytes())
    commands, used_s, own_s = count_commands(broker), cpu_s(processes), time.process_time()
    waits_s = workbench.run(workload)
    own_used_s = time.process_time() - own_s
    cpu_used_s = own_used_s + settled_cpu_s(processes) - used_s
    commands_used = count_commands(broker) - commands
    transactions, log_bytes = map(_grown, before, (workbench.transactions(), workbench.log_bytes()))
    return Sample(sum(waits_s), cpu_used_s, commands_used, transactions, log_bytes, waits_s)


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def count_commands(broker: redis.Redis) -> int:
    """Return how many commands a server has executed so far."""
    counted: dict[str, dict[str, int]] = broker.info("commandstats")
    # Only what was sent, not our own reading of the counters.
    return sum(entry["calls"] for name, entry in counted.items() if name != "cmdstat_info")


def settled_cpu_s(roots: Sequence[int]) -> float:
    """Wait until the processes rest; return the CPU time that they had used by then. Raises: RestlessError."""
    used_s, deadline_s = cpu_s(roots), time.monotonic() + SETTLING_S
    while time.monotonic() < deadline_s:
        time.sleep(QUIET_FOR_S)
        before_s, used_s = used_s, cpu_s(roots)
        if used_s - before_s <= QUIET_CPU_S:
            return before_s
    raise RestlessError(f"the processes {list(roots)} did not come to rest in {SETTLING_S:g} s")


def cpu_s(roots: Iterable[int]) -> float:
    """Return user and system time of the processes and of their descendants, this process left out."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        process = psutil.Process(root)
        for member in (process, *process.children(recursive=True)):
            if member.pid != os.getpid():
                found[member.pid] = member
    return sum(_own_cpu_s(process) for process in found.values())


def _own_cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
