"""Measuring from outside: time, CPU of process trees, what Redis counted, what the store counted."""

import os
from collections.abc import Iterable

import psutil
import redis

from benchmarks.workbench import Sample, Workbench
from benchmarks.workload import Workload


def measure(workbench: Workbench, workload: Workload, broker: redis.Redis) -> Sample:
    """Run ``workload`` once between two readings of every counter."""
    redis_pid = int(broker.info("server")["process_id"])
    before = (workbench.transactions(), workbench.log_bytes())
    commands, used_s = count_commands(broker), cpu_s((*workbench.processes(), redis_pid))
    waits_s = workbench.run(workload)
    cpu_used_s = cpu_s((*workbench.processes(), redis_pid)) - used_s
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


def cpu_s(roots: Iterable[int]) -> float:
    """Return user and system time of the processes, their descendants, and this process, which hands the work over."""
    found: dict[int, psutil.Process] = {os.getpid(): psutil.Process()}
    for root in roots:
        process = psutil.Process(root)
        for member in (process, *process.children(recursive=True)):
            found[member.pid] = member
    return sum(_own_cpu_s(process) for process in found.values())


def _own_cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
