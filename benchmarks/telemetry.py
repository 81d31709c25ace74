"""TR: what traces cost: the same fans on a service that sends spans and on one that does not, interleaved.

A sample of the service that sends ends when the collector has the whole trace, so that all its work is in it; then the
other service stands still for as long, because an idle service uses CPU as well. The collector is a process of its own,
whose CPU is not counted.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import redis

from benchmarks.against_celery import database
from benchmarks.meter import measure
from benchmarks.report import Figure, Finding
from benchmarks.service import ServiceWorkbench, service_workbench
from benchmarks.workbench import Sample
from benchmarks.workload import Shape, Work, Workload
from tests.servers import redis_server

NAME: Final = "telemetry"
MAX_OVER: Final = 1.05
"""Of the time of a fan. The CPU is spent all the same, most of it after the fan: it has no bound here."""
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Collector:
    """A collector as a child process."""

    process: "subprocess.Popen[str]"
    port: int

    def wait(self) -> int:
        """Wait for the end of the next trace; return how many spans have come so far."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@dataclass(slots=True)
class _Tracing:
    """A service, and what ends a sample of it: its trace is at the collector, or as much time has passed."""

    service: ServiceWorkbench
    collector: Collector | None
    settle_s: float = 0.0
    spans: int = 0

    @property
    def name(self) -> str:
        return self.service.name

    def run(self, workload: Workload) -> Sequence[float]:
        waits_s = self.service.run(workload)
        began_s = time.monotonic()
        if self.collector is None:
            time.sleep(self.settle_s)
        else:
            self.spans = self.collector.wait()
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
    spans = 0
    for number in range(rounds + 1):
        before = on.spans
        pair = [measure(on, workload, clients[0])]
        off.settle_s, spans = on.settle_s, on.spans - before
        pair.append(measure(off, workload, clients[1]))
        if number:  # the first warms both up
            for kept, sample in zip(samples, pair, strict=True):
                kept.append(sample)
    figures = [
        _figure(workload, on.name, "cpu", "ms/step", *(_cpu_ms(side, workload) for side in samples)),
        _figure(
            workload, on.name, "elapsed", "ms", *(median(one.elapsed_s for one in side) * 1000 for side in samples)
        ),
        Figure(f"TR-{workload.name}", on.name, "spans", "1/step", spans / workload.size, "-", None, None),
    ]
    broken = [
        f"traces cost {one.ratio:.2f} x the {one.metric} of {one.workload} on {on.name}, more than {MAX_OVER}"
        for one in figures
        if one.metric == "elapsed" and one.ratio is not None and one.ratio > MAX_OVER
    ]
    return Finding(figures, broken)


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
