"""Totals of the event log as Prometheus metrics: what models, tools and decisions took, cost and failed in."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from soong.orchestrator.notifications.sender import TOTAL as NOTIFICATIONS
from soong.orchestrator.telemetry import metrics_consumer as totals_of
from soong.shared.engine.tasks.event_feed import Totals

_COUNTERS: Final[Sequence[tuple[str, str, str, tuple[str, ...], float]]] = (
    (totals_of.TOKENS, "soong_model_tokens", "Tokens of answered requests.", ("model", "kind"), 1),
    (totals_of.COST, "soong_model_cost_usd", "Cost of answered requests, where a price is known.", ("model",), 1e6),
    (totals_of.FAILURES, "soong_model_failures", "Failed requests by HTTP status.", ("model", "status"), 1),
    (totals_of.CALLS, "soong_tool_calls", "Tool calls that ended.", ("tool",), 1),
    (NOTIFICATIONS, "soong_notifications", "Attempts to send notifications by outcome.", ("channel", "outcome"), 1),
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
