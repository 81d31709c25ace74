"""From samples to figures: medians, ratios, the printed table and ``latest.json``."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.workbench import Sample
from benchmarks.workload import Shape, Workload


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. ``ratio`` is ours divided by the peer's; None where the peer has no such figure."""

    workload: str
    store: str
    metric: str
    unit: str
    ours: float
    peer: str
    peer_value: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a part of the benchmark found: its figures, and in words which promises they break."""

    figures: Sequence[Figure]
    broken: Sequence[str] = ()

    def and_also(self, other: "Finding") -> "Finding":
        return Finding((*self.figures, *other.figures), (*self.broken, *other.broken))


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    unit: str
    value: Callable[[Sample, int], float | None]


_THROUGHPUT = _Metric("throughput", "steps/s", lambda sample, size: size / sample.elapsed_s)
_HOP = _Metric("hop", "ms", lambda sample, size: sample.elapsed_s * 1000 / size)
_WAITS = (
    _Metric("wait, p50", "ms", lambda sample, _size: statistics.median(sample.waits_s) * 1000),
    _Metric("wait, p99", "ms", lambda sample, _size: statistics.quantiles(sample.waits_s, n=100)[-1] * 1000),
)
_SPEED: Mapping[Shape, Sequence[_Metric]] = {Shape.FAN: (_THROUGHPUT,), Shape.CHAIN: (_HOP,), Shape.SINGLE: _WAITS}
_COSTS = (
    _Metric("cpu", "ms/step", lambda sample, size: sample.cpu_s * 1000 / size),
    _Metric("redis_commands", "1/step", lambda sample, size: sample.redis_commands / size),
    _Metric(
        "transactions",
        "1/step",
        lambda sample, size: None if sample.transactions is None else sample.transactions / size,
    ),
    _Metric(
        "written ahead",
        "KB/step",
        lambda sample, size: None if sample.log_bytes is None else sample.log_bytes / 1e3 / size,
    ),
)


def figures(
    workload: Workload, store: str, ours: Sequence[Sample], peer: str, theirs: Sequence[Sample]
) -> list[Figure]:
    """Return the medians of one workload on one store beside the peer's."""
    found = []
    for metric in (*_SPEED[workload.shape], *_COSTS):
        own, other = _median(metric, ours, workload.size), _median(metric, theirs, workload.size)
        if own is not None:
            ratio = own / other if other else None
            found.append(Figure(workload.name, store, metric.name, metric.unit, own, peer, other, ratio))
    return found


def _median(metric: _Metric, samples: Sequence[Sample], size: int) -> float | None:
    values = [value for sample in samples if (value := metric.value(sample, size)) is not None]
    return round(statistics.median(values), 4) if values else None


def table(lines: Iterable[Figure]) -> str:
    """Return the figures as aligned text."""
    head = ("workload", "store", "metric", "ours", "peer", "ratio")
    rows = [head, *(_row(figure) for figure in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    theirs = "-" if figure.peer_value is None else f"{figure.peer_value:,.2f}"
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    metric = f"{figure.metric} ({figure.unit})"
    return (figure.workload, figure.store, metric, f"{figure.ours:,.2f}", theirs, ratio)


def write(lines: Sequence[Figure], path: Path) -> None:
    """Write figures to the file in which those of other workloads and stores stand: they replace their own alone."""
    fresh = [asdict(figure) for figure in lines]
    measured = {_place(line) for line in fresh}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept = [line for line in known if _place(line) not in measured]
    path.write_text(json.dumps([*kept, *fresh], indent=1) + "\n", encoding="utf-8")


def _place(line: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of workload, which stands before its first hyphen, and the store."""
    return line["workload"].partition("-")[0], line["store"]
