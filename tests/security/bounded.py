"""Runs a program under limits of memory and CPU time, and tells what it took; other load changes neither."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024

# A small process between us and the program: what a process takes at most counts from its parent's size at the fork.
_LIMITED: Final = """
import json, os, resource, sys
report, memory, cpu, *arguments = sys.argv[1:]
pid = os.fork()
if not pid:
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 5))
    os.execv(sys.executable, [sys.executable, "-P", *arguments])
_, status, used = os.wait4(pid, 0)
taken = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
os.write(int(report), json.dumps(taken).encode())
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a program took and said. ``code`` is negative for the signal that ended it."""

    code: int
    cpu_s: float
    peak_mib: float
    out: str
    err: str


def run_bounded(
    arguments: Sequence[str],
    *,
    stdin: str = "",
    memory_mib: int = 1024,
    cpu_s: int = 60,
    env: Mapping[str, str] | None = None,
) -> Taken:
    """Run ``python -P ARGUMENTS`` to its end; beyond a limit its allocations fail, or it is ended by SIGXCPU."""

    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as report:
        given.write(stdin.encode())
        given.seek(0)
        limits = [str(report.fileno()), str(memory_mib * MIB), str(cpu_s)]
        command = [sys.executable, "-I", "-S", "-c", _LIMITED, *limits, *arguments]
        done = subprocess.run(
            command, stdin=given, capture_output=True, env=env, pass_fds=[report.fileno()], check=True
        )
        report.seek(0)
        code, cpu, peak = json.load(report)
        return Taken(code, cpu, peak, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
