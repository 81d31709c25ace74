"""Totals that are counted from logs, over each store, as Prometheus reads them."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from soong.orchestrator.event_log.follower import EventFollower
from soong.orchestrator.telemetry.consumers import MAX_SERIES, MetricsConsumer, counted
from soong.orchestrator.telemetry.metrics import Snapshot, text
from soong.orchestrator.telemetry.spans import OpenWork
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Event, EventType, NewEvent
from soong.shared.engine.tasks.event_feed import Totals
from soong.shared.engine.tasks.metrics import Metrics
from tests.contract.scene import ContractHarness
from tests.spec_document import ROOT

pytestmark = pytest.mark.spec("OPS-05.b")

USED: dict[str, Json] = {"model": "a:b", "duration_ms": 700, "input_tokens": 7, "output_tokens": 2, "cost_usd": "0.5"}
EVENTS = (
    NewEvent(EventType.MODEL_FAILED, {"attempt": 1, "status": 429, "model": "a:b"}),
    NewEvent(EventType.MODEL_RESPONDED, USED),
    NewEvent(EventType.TOOL_FAILED, {"tool": "code.read_file", "error": "not_found"}),
    NewEvent(EventType.PERMISSION_REQUESTED, {"request_id": "r"}, 1_000_000),
    NewEvent(EventType.PERMISSION_DECIDED, {"request_id": "r", "author": "person"}, 4_000_000),
)


def shown(totals: Totals) -> dict[str, float]:
    snapshot = Snapshot(Metrics(), (), {}, 1, 0, (), totals)
    families = text_string_to_metric_families(text(snapshot).decode())
    return {f"{s.name}{sorted(s.labels.values())}": s.value for family in families for s in family.samples}


async def test_each_event_is_counted_once_however_often_the_counting_starts_again(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    for event in EVENTS:
        now = scene.now_us
        await scene.store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=now)
        follower = EventFollower(scene.store.feed, MetricsConsumer(), scene.clock, lambda: scene.own.owner_id, 1.0)
        await follower.look()
        await follower.look()

    read = shown(await scene.store.feed.totals())
    assert read["soong_model_tokens_total['a:b', 'input']"] == 7
    assert read["soong_model_cost_usd_total['a:b']"] == 0.5
    assert read["soong_model_failures_total['429', 'a:b']"] == 1
    assert read["soong_tool_errors_total['code.read_file', 'not_found']"] == 1
    assert read["soong_model_request_seconds_bucket['1', 'a:b']"] == 1
    assert read["soong_model_request_seconds_bucket['0.5', 'a:b']"] == 0
    assert read["soong_decision_seconds_sum['person']"] == 3
    assert read["soong_decision_seconds_count['person']"] == 1
    assert read["soong_step_queue_seconds_count[]"] == 1


@pytest.mark.parametrize("value", [None, -1, True, 10**30, "NaN", "x" * 9999, [], 1.5])
def test_what_a_taken_over_worker_writes_ends_no_counting(value: Json) -> None:
    names = ("model", "tool", "error", "status", "attempt", "duration_ms", "input_tokens", "cost_usd", "request_id")

    entries = [
        entry
        for type_ in EventType
        for entry in counted(OpenWork(), Event("r", 1, type_, 1, dict.fromkeys(names, value)))
    ]

    assert all(0 <= number < 2**53 and all(len(label) <= 200 for label in labels) for _, labels, number in entries)


def test_a_worker_that_makes_up_names_makes_no_more_series_than_are_allowed() -> None:
    consumer = MetricsConsumer()

    labels = {consumer._bounded("tool_calls", (f"tool{number}",)) for number in range(3 * MAX_SERIES)}

    assert len(labels) == MAX_SERIES + 1


@pytest.mark.parametrize("name", ["alerts.yaml", "grafana.json"])
def test_every_metric_of_the_rules_and_of_the_dashboard_exists(name: str) -> None:
    wanted = set(re.findall(r"\bsoong_[a-z_]+", (ROOT / "deploy" / name).read_text(encoding="utf-8")))

    described = set(re.findall(r"^# TYPE (\w+)", text(Snapshot(Metrics(), (), {}, 1, 0)).decode(), re.MULTILINE))

    assert wanted
    assert {metric.removesuffix("_bucket") for metric in wanted} <= described
