"""What the benchmarks run, and how samples become figures."""

import json
from pathlib import Path

import pytest

from benchmarks.plans import plan_of
from benchmarks.report import figures, write
from benchmarks.workbench import Sample
from benchmarks.workload import Shape, Work, Workload
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import plan_from_json

FAN = Workload(Shape.FAN, Work.PYTHON, 500)
CHAIN = Workload(Shape.CHAIN, Work.AGENT, 100)


def make_sample(elapsed_s: float, transactions: int | None = None) -> Sample:
    return Sample(elapsed_s=elapsed_s, cpu_s=1.0, redis_commands=1000, transactions=transactions)


def test_a_fan_is_reported_as_the_median_throughput() -> None:
    ours = [make_sample(0.5, 10), make_sample(1.0, 10), make_sample(9.0, 10)]

    throughput = figures(FAN, "sqlite", ours, "celery", [make_sample(0.25)])[0]

    assert (throughput.metric, throughput.unit) == ("throughput", "steps/s")
    assert (throughput.ours, throughput.peer_value, throughput.ratio) == (500.0, 2000.0, 0.25)


def test_a_chain_is_reported_as_milliseconds_a_hop() -> None:
    hop = figures(CHAIN, "sqlite", [make_sample(0.3, 1)], "celery", [make_sample(0.15)])[0]

    assert (hop.metric, hop.ours, hop.ratio) == ("hop", 3.0, 2.0)


def test_figures_replace_those_of_their_own_part_and_store_alone(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    write(figures(FAN, "sqlite", [make_sample(1.0)], "celery", [make_sample(1.0)]), path)
    write(figures(FAN, "postgresql", [make_sample(1.0)], "celery", [make_sample(1.0)]), path)
    write(figures(CHAIN, "sqlite", [make_sample(1.0)], "celery", [make_sample(1.0)]), path)

    write(figures(FAN, "sqlite", [make_sample(0.5)], "celery", [make_sample(1.0)])[:1], path)

    places = [(line["workload"], line["store"]) for line in json.loads(path.read_text())]
    assert places.count((FAN.name, "sqlite")) == 1
    assert {(FAN.name, "postgresql"), (CHAIN.name, "sqlite")} <= set(places)


@pytest.mark.parametrize(
    "workload", [Workload(shape, work, 5) for shape in Shape for work in Work], ids=lambda w: w.name
)
def test_every_workload_is_a_plan_that_the_service_takes(workload: Workload) -> None:
    known = PlanNames(functions=frozenset({"builtin.echo", "builtin.calls"}))

    plan = plan_from_json(plan_of(workload), known=known)

    assert len(plan.steps) >= (1 if workload.shape is Shape.SINGLE else workload.size)
