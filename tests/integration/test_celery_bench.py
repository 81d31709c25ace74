"""The peers of the benchmark do what their names say."""

from pathlib import Path

import psycopg
import pytest

from benchmarks.durable_peers import PROGRAMS, PYTHON, durable_workbenches
from benchmarks.past import end_of
from benchmarks.peer import PeerError, celery_workbench
from benchmarks.scale import CLAIMED_TWICE
from benchmarks.tool_call import NAME, measure
from benchmarks.workbench import Workbench
from benchmarks.workload import Shape, Work, Workload
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.store import SqlStore
from tests.extra import durable_peers
from tests.integration.sql_stores import begin, claim_one, opened
from tests.model.builders import take_turn
from tests.model.clock import START_US
from tests.servers import RedisServer


def run_all(bench: Workbench) -> None:
    for shape in Shape:
        for work in filter(bench.does, Work):
            waits_s = bench.run(Workload(shape, work, 2))

            assert len(waits_s) == (2 if shape is Shape.SINGLE else 1)


def test_celery_runs_the_agents_of_every_shape_and_they_look_into_the_folder(
    redis_live: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with celery_workbench(redis_live.socket_url, concurrency=1, pool="solo", agents_in=folder) as agents:
        assert agents.name == "celery 1 x solo, Pydantic AI agents"
        assert [work for work in Work if agents.does(work)] == [Work.AGENT, Work.AGENT_3]

        run_all(agents)

        folder.rmdir()
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


# -- the question that the benchmark of several workers asks of the rows finds what it is asked for
@pytest.mark.spec("DAG-03")
async def test_a_step_that_was_claimed_once_is_distinguished_from_one_that_was_claimed_twice(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        session, worker_id = await begin(store)
        once, twice = [await claim_one(store, session, worker_id) for _ in range(2)]
        held = Lease(twice.step_key, twice.identity.run_id, twice.fence)
        await store.claims.release(worker_id, [held], reason="drain", now_us=START_US)
        (again,) = await advance(store, worker_id, claim=1)
        await advance(store, worker_id, once, again)

    plain = parse_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        assert connection.execute(CLAIMED_TWICE).fetchone() == (2, 1)


async def advance(store: SqlStore, worker_id: str, *ended: Claim, claim: int = 0) -> tuple[Claim, ...]:
    taken = await take_turn(store, worker_id, [end_of(each) for each in ended], claim=claim)
    return taken.claims


# -- the benchmark of a tool call measures calls that do what they should
@pytest.mark.timeout(300)
async def test_a_recorded_read_is_one_transaction_and_every_candidate_gives_the_sum() -> None:
    found = await measure(rounds=1, per_round=20)

    assert found.transactions == 1.0
    assert found.direct.cpu_us < found.pipeline.cpu_us
    assert found.pipeline.elapsed_us < found.persisted.elapsed_us
    assert {figure.workload for figure in found.figures()} == {NAME}
