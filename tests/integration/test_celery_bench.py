"""The peers of the benchmark do what their names say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.durable_peers import PROGRAMS, PYTHON, durable_workbenches
from benchmarks.peer import CeleryWorkbench, PeerError, celery_workbench
from benchmarks.workbench import Workbench
from benchmarks.workload import Shape, Work, Workload
from tests.extra import durable_peers
from tests.servers import RedisServer


@pytest.fixture
def agents(redis_live: RedisServer, tmp_path: Path) -> Iterator[CeleryWorkbench]:
    """Yield one Celery worker whose tasks are agents that look into an empty folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    with celery_workbench(redis_live.socket_url, concurrency=1, pool="solo", agents_in=folder) as bench:
        yield bench


def run_all(bench: Workbench) -> None:
    for shape in Shape:
        for work in filter(bench.does, Work):
            waits_s = bench.run(Workload(shape, work, 2))

            assert len(waits_s) == (2 if shape is Shape.SINGLE else 1)


def test_celery_runs_the_agents_of_every_shape(agents: CeleryWorkbench) -> None:
    assert agents.name == "celery 1 x solo, Pydantic AI agents"
    assert [work for work in Work if agents.does(work)] == [Work.AGENT, Work.AGENT_3]

    run_all(agents)


def test_an_agent_in_celery_looks_into_the_folder(agents: CeleryWorkbench, tmp_path: Path) -> None:
    (tmp_path / "project").rmdir()

    with pytest.raises(FileNotFoundError):
        agents.run(Workload(Shape.SINGLE, Work.AGENT, 1))


def test_durable_peers_run_functions_and_agents_of_every_shape_and_agents_look_into_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, durable_peers())
    folder = tmp_path / "project"
    folder.mkdir()

    with durable_workbenches(folder) as benches:
        assert len({bench.name for bench in benches}) == len(benches) == 2 * len(PROGRAMS)
        for bench in benches:
            run_all(bench)

        folder.rmdir()
        for bench in filter(lambda one: one.does(Work.AGENT), benches):
            with pytest.raises(PeerError):
                bench.run(Workload(Shape.SINGLE, Work.AGENT, 1))
