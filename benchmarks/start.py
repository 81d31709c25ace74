"""What waits before the first step: commands from cold and beside a service, and the cost of an idle service.

Commands are real ones, in a home of their own; CPU is that of the command and of what it has reaped. The bounds hold
for the least of the rounds, on two quiet cores.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.report import Figure, Finding

PART: Final = "start"
PLAN: Final = "title: One\nsteps:\n  - {id: a, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
IDLE_S: Final = 30.0
SETTLED_S: Final = 5.0
MOST: Final[Mapping[str, float]] = {
    "soong tools list, wall": 0.3,
    "soong run, a service runs, wall": 0.4,
    "soong run, no service, wall": 2.0,
    "idle service, CPU": 1.0,
    "idle service, PSS": 170.0,
}


@dataclass(frozen=True, slots=True)
class _Home:
    """An empty home and what commands see of it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SOONG_", "PYTHON"))}
        return {**kept, "SOONG_AGENT_HOME": str(self.folder / "home"), "XDG_RUNTIME_DIR": str(self.folder)}

    def command(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "soong", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def timed(self, *words: str) -> tuple[float, float]:
        """Run a command to its end; return its wall and CPU seconds."""
        began_s = time.perf_counter()
        process = self.command(*words)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"soong {' '.join(words)} ended with {process.returncode}")
        return wall_s, used.ru_utime + used.ru_stime

    def service(self) -> list[psutil.Process]:
        """Return the processes of the service of this home."""
        record = json.loads((self.folder / "home" / "service.json").read_text(encoding="utf-8"))
        service = psutil.Process(record["pid"])
        return [service, *service.children(recursive=True)]


def run(rounds: int) -> Finding:
    """Measure everything, ``rounds`` times what can be repeated."""
    with tempfile.TemporaryDirectory(prefix="soong-start-") as folder:
        home = _Home(Path(folder))
        (home.folder / "plan.yaml").write_text(PLAN, encoding="utf-8")
        _ephemeral(home)  # the home is made, bytecode is there
        lines = [*_repeated("soong tools list", rounds, lambda: home.timed("tools", "list"))]
        lines += _repeated("soong run, no service", rounds, lambda: _ephemeral(home))
        service = home.command("up")
        try:
            _until((home.folder / "home" / "service.json").exists)
            home.timed("run", "plan.yaml", "--json")
            lines += _repeated("soong run, a service runs", rounds, lambda: home.timed("run", "plan.yaml", "--json"))
            lines += _idle(home)
        finally:
            service.terminate()
            service.wait(60)
    broken = [
        f"{line.workload}, {line.metric} is {line.ours:g} {line.unit}, promised {MOST[name]:g}"
        for line in lines
        if (name := f"{line.workload}, {line.metric}") in MOST and line.ours >= MOST[name]
    ]
    return Finding(lines, broken)


def _ephemeral(home: _Home) -> tuple[float, float]:
    """Run the plan on a service of its own, and wait until that is gone."""
    spent = home.timed("run", "plan.yaml", "--json")
    _until(lambda: not (home.folder / "home" / "service.json").exists())
    return spent


def _repeated(workload: str, rounds: int, once: Callable[[], tuple[float, float]]) -> list[Figure]:
    samples = [once() for _ in range(rounds)]
    walls, cpus = [sample[0] for sample in samples], [sample[1] for sample in samples]
    return [
        _figure(workload, "wall", "s", min(walls)),
        _figure(workload, "wall p50", "s", statistics.median(walls)),
        _figure(workload, "CPU", "s", min(cpus)),
    ]


def _idle(home: _Home) -> list[Figure]:
    time.sleep(SETTLED_S)
    processes = home.service()
    before_s = _cpu_s(processes)
    time.sleep(IDLE_S)
    used = (_cpu_s(processes) - before_s) / IDLE_S * 100
    memory = sum(process.memory_full_info().pss for process in processes) / 2**20
    return [_figure("idle service", "CPU", "% of a core", used), _figure("idle service", "PSS", "MiB", memory)]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _figure(workload: str, metric: str, unit: str, value: float) -> Figure:
    return Figure(workload, "sqlite", metric, unit, round(value, 3), "", None, None)


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the service did not come up or go away within 60 s")
        time.sleep(0.02)
