"""The metrics for operators and autoscalers, in Prometheus' text form, and the address that serves them.

No counter lives in a process: every process reports the same, also right after a restart.
"""

import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from soong.orchestrator.telemetry import consumers as totals_of
from soong.shared.core.errors import SoongError, UnavailableError, UsageError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker, idle_workers
from soong.shared.engine.tasks.event_feed import ATTEMPTS, Totals
from soong.shared.engine.tasks.metrics import LimitUsage, Metrics, MetricsSource, PoolMetrics
from soong.shared.storage.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS: Final[Sequence[tuple[str, str, str, tuple[str, ...], float]]] = (
    (totals_of.TOKENS, "soong_model_tokens", "Tokens of answered requests.", ("model", "kind"), 1),
    (totals_of.COST, "soong_model_cost_usd", "Cost of answered requests, where a price is known.", ("model",), 1e6),
    (totals_of.FAILURES, "soong_model_failures", "Failed requests by HTTP status.", ("model", "status"), 1),
    (totals_of.CALLS, "soong_tool_calls", "Tool calls that ended.", ("tool",), 1),
    (ATTEMPTS, "soong_notifications", "Attempts to send notifications by outcome.", ("channel", "outcome"), 1),
    (totals_of.TOOL_ERRORS, "soong_tool_errors", "Tool calls that failed or were denied.", ("tool", "error"), 1),
)
_HISTOGRAMS: Final[Sequence[tuple[str, str, str, tuple[str, ...]]]] = (
    (
        totals_of.LATENCY,
        "soong_model_request_seconds",
        "Time of an answered request, its retries included.",
        ("model",),
    ),
    (
        totals_of.DECISIONS,
        "soong_decision_seconds",
        "Time from a question to its decision, by who decided.",
        ("author",),
    ),
    (totals_of.QUEUE, "soong_step_queue_seconds", "Time from ready to claimed.", ()),
)

log = get_logger(__name__)

Read = Callable[[], Awaitable[bytes]]


class Snapshot(Value):
    """One look. ``claimable`` is by pool what the concurrency limits leave of the ready steps: what more workers
    could take.
    """

    metrics: Metrics
    workers: Sequence[Worker]
    claimable: Mapping[str, int]
    owners: int
    now_us: int
    concurrency_limits: Sequence[LimitUsage] = ()
    totals: Totals = msgspec.field(default_factory=dict)

    @property
    def pools(self) -> Sequence[str]:
        """Return every pool that is served or in which something waits or runs; ``default`` always."""
        served = {pool for worker in self.workers for pool in worker.pools}
        return sorted({"default"} | served | self.metrics.pools.keys())

    def waited_s(self, since_us: int | None) -> float:
        """Return for how long; 0 when nothing waits, or when a clock elsewhere is ahead of ours."""
        return 0.0 if since_us is None else max(0, self.now_us - since_us) / 1_000_000


async def collect(store: Store, source: MetricsSource, clock: Clock) -> Snapshot:
    """Read what the metrics say. Raises: UnavailableError."""
    metrics = await source.metrics()
    workers = await store.sessions.workers()
    claimable = (await store.claims.backlog()).ready
    # Those of sessions come and go; a time series of each would outlive them all.
    concurrency_limits = [
        bound for bound in await source.concurrency_limits() if not bound.scope.startswith("session:")
    ]
    owners, totals = len(await store.sessions.owners()), await store.feed.totals()
    return Snapshot(metrics, workers, claimable, owners, clock.now_us(), concurrency_limits, totals)


def text(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class _SnapshotCollector(Collector):
    snapshot: Snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _gauges(self.snapshot)
        yield from families(self.snapshot.totals)


def _gauges(snapshot: Snapshot) -> Iterator[Metric]:
    of_pools, metrics = snapshot.metrics.pools, snapshot.metrics
    pools = {pool: of_pools.get(pool, PoolMetrics()) for pool in snapshot.pools}
    idle = {pool: idle_workers(snapshot.workers, pool) for pool in pools}
    states = (ProcessState.LIVE, ProcessState.DRAINING)
    bounds = snapshot.concurrency_limits

    def by_pool(name: str, text: str, value: Callable[[str], float]) -> Metric:
        return _gauge(name, text, "pool", {pool: value(pool) for pool in pools})

    yield by_pool("soong_steps_ready", "Steps that wait for a slot.", lambda pool: pools[pool].ready)
    yield by_pool(
        "soong_steps_claimable",
        "Ready steps that no concurrency limit holds back: what more slots would take.",
        lambda pool: snapshot.claimable.get(pool, 0),
    )
    yield by_pool(
        "soong_steps_oldest_wait_seconds",
        "For how long the next step in line has waited.",
        lambda pool: snapshot.waited_s(pools[pool].oldest_us),
    )
    yield by_pool(
        "soong_steps_to_pull", "Ready steps that wait for a run which asks for them.", lambda pool: pools[pool].pulled
    )
    yield by_pool("soong_steps_running", "Steps that workers hold in their slots.", lambda pool: pools[pool].running)
    yield by_pool(
        "soong_slots_free",
        "Slots of live workers that hold nothing.",
        lambda pool: sum(one.slots - one.busy for one in idle[pool]),
    )
    most, used = {one.scope: one.limit for one in bounds}, {one.scope: one.used for one in bounds}
    yield _gauge("soong_concurrency_limit_slots", "Most steps of a scope that may be held at once.", "scope", most)
    yield _gauge("soong_concurrency_limit_used", "Steps of a limited scope that workers hold.", "scope", used)
    in_state = {state.value: sum(worker.state is state for worker in snapshot.workers) for state in states}
    yield _gauge("soong_workers", "Worker processes by state.", "state", in_state)
    for name, text, value in (
        ("soong_orchestrators", "Orchestrators that own sessions.", snapshot.owners),
        ("soong_tasks_open", "Tasks that run or are paused.", metrics.open_tasks),
        ("soong_approvals_waiting", "Questions that wait for consent.", metrics.questions),
        (
            "soong_approvals_oldest_wait_seconds",
            "For how long the oldest question has waited.",
            snapshot.waited_s(metrics.oldest_question_us),
        ),
        ("soong_leases_lost", "Leases that steps of open tasks lost with their workers.", metrics.lost_leases),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for of, value in values.items():
        gauge.add_metric([of], value)
    return gauge


def families(totals: Totals) -> Iterator[Metric]:
    """Yield the metrics of totals; those without any, too, so that rules and panels find them."""
    for name, shown, text, labels, unit in _COUNTERS:
        counter = CounterMetricFamily(shown, text, labels=list(labels))
        for (of, values), total in totals.items():
            if of == name and len(values) == len(labels):
                counter.add_metric(list(values), total / unit)
        yield counter
    for name, shown, text, labels in _HISTOGRAMS:
        histogram = HistogramMetricFamily(shown, text, labels=list(labels))
        for label in sorted({values[0] for of, values in totals if of == name}):
            buckets = _buckets(
                {values[1]: total for (of, values), total in totals.items() if (of, values[0]) == (name, label)}
            )
            histogram.add_metric([label] if labels else [], buckets=buckets[0], sum_value=buckets[1])
        yield histogram


def _buckets(counted: dict[str, int]) -> tuple[Sequence[tuple[str, float]], float]:
    """Return the cumulative buckets and the sum in seconds."""
    sum_s, reached = counted.get(totals_of.SUM, 0) / 1000, 0
    buckets: list[tuple[str, float]] = []
    for most in totals_of.BUCKETS_MS:
        reached += counted.get(str(most), 0)
        buckets.append((f"{most / 1000:g}", reached))
    return [*buckets, ("+Inf", reached + counted.get("inf", 0))], sum_s


class MetricsEndpoint:
    """Listens from ``start`` to ``stop`` on the running loop."""

    def __init__(self, read: Read) -> None:
        routes: list[Any] = [(r"/metrics", _MetricsPage, {"read": read}), (r"/healthz", _Health)]
        # An address that is asked every few seconds would fill the log.
        self._server = HTTPServer(Application(routes, log_function=lambda _handler: None))

    def start(self, address: str, port: int) -> None:
        """Begin to listen. Raises: UnavailableError when another process does; UsageError, the address is wrong."""
        try:
            self._server.listen(port, address)
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}:
                raise
            kind: type[SoongError] = UnavailableError if error.errno == errno.EADDRINUSE else UsageError
            raise kind(f"metrics cannot listen on {address} port {port}: {error.strerror}; choose another") from error

    async def stop(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()


class _MetricsPage(RequestHandler):
    def initialize(self, read: Read) -> None:
        self._read = read

    async def get(self) -> None:
        try:
            body = await self._read()
        except UnavailableError as error:
            log.warning("metrics_unanswered", error=str(error))
            self.set_status(503)
            body = b"the database does not answer\n"
        self.set_header("Content-Type", CONTENT_TYPE)
        self.write(body)


class _Health(RequestHandler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/plain")
        self.write("ok\n")
