"""TR: what traces cost: the same fans on a service that sends spans and on one that does not, interleaved.

A sample of the service that sends ends when the collector has every span, so that all its work is in it; then the
other service stands still for as long, because an idle service uses CPU as well. What the fan itself took is measured
apart, up to its result. The collector is a process of its own, whose CPU is not counted.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import redis

from benchmarks.against_celery import database
from benchmarks.meter import cpu_s, measure
from benchmarks.report import Figure, Finding
from benchmarks.service import ServiceWorkbench, service_workbench
from benchmarks.workbench import Sample
from benchmarks.workload import Shape, Work, Workload
from tests.servers import redis_server

NAME: Final = "telemetry"
MAX_OVER: Final = 1.05
"""Of the time of a fan, and of the CPU until its result. What is spent afterwards has no bound here."""
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Collector:
    """A collector as a child process."""

    process: "subprocess.Popen[str]"
    port: int

    def wait(self, spans: int) -> None:
        """Wait until so many spans have come."""
        assert self.process.stdout is not None
        while int(self.process.stdout.readline()) < spans:
            pass


@dataclass(slots=True)
class _Tracing:
    """A service, and what ends a sample of it: its spans are at the collector, or as much time has passed."""

    service: ServiceWorkbench
    collector: Collector | None
    settle_s: float = 0.0
    spans: int = 0
    fan_cpu_s: list[float] = field(default_factory=list)
    """Of each sample, up to the result."""

    @property
    def name(self) -> str:
        return self.service.name

    def does(self, work: Work) -> bool:
        return self.service.does(work)

    def run(self, workload: Workload) -> Sequence[float]:
        used_s = cpu_s(self.processes())
        waits_s = self.service.run(workload)
        self.fan_cpu_s.append(cpu_s(self.processes()) - used_s)
        began_s = time.monotonic()
        if self.collector is None:
            time.sleep(self.settle_s)
        else:
            self.spans += spans_of(workload)
            self.collector.wait(self.spans)
        self.settle_s = time.monotonic() - began_s
        return waits_s

    def processes(self) -> Sequence[int]:
        return self.service.processes()

    def transactions(self) -> int | None:
        return self.service.transactions()

    def log_bytes(self) -> int | None:
        return self.service.log_bytes()


def run(stores: Sequence[str], rounds: int, width: int) -> Finding:
    """Run fans of ``width`` functions, and of agents with one tool call, on both services."""
    found = Finding(())
    for store in stores:
        found = found.and_also(_on_store(store, rounds, width))
    return found


def _on_store(store: str, rounds: int, width: int) -> Finding:
    found = Finding(())
    with ExitStack() as stack:
        brokers = [stack.enter_context(redis_server()) for _ in range(2)]
        collector = stack.enter_context(_collector())
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}"}
        sides = []
        for server, more in zip(brokers, (traced, {}), strict=True):
            place = stack.enter_context(database(store))
            service = stack.enter_context(
                service_workbench(
                    store, place.home, place.url, server.socket_url, place.ledger, more=more, more_pids=place.pids
                )
            )
            sides.append(_Tracing(service, collector if more else None))
        clients = [stack.enter_context(redis.Redis.from_url(server.socket_url)) for server in brokers]
        for work in (Work.PYTHON, Work.AGENT):
            found = found.and_also(_compared(Workload(Shape.FAN, work, width), sides, clients, rounds))
    return found


def _compared(workload: Workload, sides: Sequence[_Tracing], clients: Sequence["redis.Redis"], rounds: int) -> Finding:
    on, off = sides
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    for side in sides:
        side.fan_cpu_s.clear()
    for number in range(rounds + 1):
        for place in (0, 1) if number % 2 else (1, 0):  # who comes second meets a machine that is warm
            off.settle_s = on.settle_s
            sample = measure(sides[place], workload, clients[place])
            if number:  # the first warms both up
                samples[place].append(sample)
    figures = [
        _figure(workload, on.name, "cpu", "ms/step", *(_cpu_ms(side, workload) for side in samples)),
        _figure(workload, on.name, "cpu-in-fan", "ms/step", *(_fan_cpu_ms(side, workload) for side in sides)),
        _figure(
            workload, on.name, "elapsed", "ms", *(median(one.elapsed_s for one in side) * 1000 for side in samples)
        ),
        Figure(f"TR-{workload.name}", on.name, "spans", "1/step", spans_of(workload) / workload.size, "-", None, None),
    ]
    broken = [
        f"traces cost {one.ratio:.2f} x the {one.metric} of {one.workload} on {on.name}, more than {MAX_OVER}"
        for one in figures
        if one.metric in {"elapsed", "cpu-in-fan"} and one.ratio is not None and one.ratio > MAX_OVER
    ]
    return Finding(figures, broken)


def spans_of(workload: Workload) -> int:
    """Return how many spans a fan is: one of the workflow, and of each step its agent, its requests and its calls."""
    calls = workload.work.calls
    return 1 + (workload.size + 2) * (2 + 2 * calls if calls else 1)


def _fan_cpu_ms(side: _Tracing, workload: Workload) -> float:
    return median(side.fan_cpu_s[1:]) * 1000 / workload.size


def _cpu_ms(samples: Sequence[Sample], workload: Workload) -> float:
    return median(sample.cpu_s for sample in samples) * 1000 / workload.size


def _figure(workload: Workload, store: str, metric: str, unit: str, on: float, off: float) -> Figure:
    return Figure(f"TR-{workload.name}", store, metric, unit, on, "without traces", off, on / off)


@contextmanager
def _collector() -> Iterator[Collector]:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.collector"],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield Collector(process, int(process.stdout.readline()))
        finally:
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
