"""What is watched is what the rows say; reading it costs what is open, not what has been; it is told over HTTP."""

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import environ
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from soong.orchestrator.cli.workers import text_of
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.orchestrator.telemetry.metrics import collect
from soong.orchestrator.telemetry.metrics import text as metrics_text
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.step import ConcurrencyLimit
from soong.shared.permissions.request import RequestState
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.store import SqlStore
from soong.shared.storage.sql.tasks.metrics import SqlMetrics
from tests.contract.pulling import pulled, taken, work
from tests.contract.scene import ContractHarness, held, open_scene
from tests.extra import promtool
from tests.integration.sql_stores import opened
from tests.model.builders import make_owner, make_request, make_step, make_worker, open_session
from tests.model.clock import FakeClock
from tests.servers import free_port
from tests.waiting import wait_until
from tests.warm import WarmProcess, warm_parent


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"migrated_{request.param}_url"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with opened(url) as store:
        yield store


@pytest.fixture
async def source(url: str, store: SqlStore) -> AsyncIterator[SqlMetrics]:
    source = SqlMetrics(parse_url(url))
    yield source
    await source.close()


@pytest.fixture
async def scene(store: SqlStore) -> ContractHarness:
    return await open_scene(store)


def parsed(body: bytes) -> dict[str, float]:
    """Return samples as ``name{label}``, read by Prometheus' own parser."""
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def watched(scene: ContractHarness, source: SqlMetrics) -> dict[str, float]:
    return parsed(metrics_text(await collect(scene.store, source, scene.clock)))


@pytest.mark.spec("OPS-05")
async def test_an_idle_service_shows_every_figure_as_nothing(scene: ContractHarness, source: SqlMetrics) -> None:
    seen = await watched(scene, source)

    assert seen == {
        "soong_steps_ready{default}": 0,
        "soong_steps_claimable{default}": 0,
        "soong_steps_oldest_wait_seconds{default}": 0,
        "soong_steps_to_pull{default}": 0,
        "soong_steps_running{default}": 0,
        "soong_slots_free{default}": (await scene.store.sessions.workers())[0].slots,
        "soong_workers{live}": 1,
        "soong_workers{draining}": 0,
        "soong_orchestrators": len(await scene.store.sessions.owners()),
        "soong_tasks_open": 0,
        "soong_approvals_waiting": 0,
        "soong_approvals_oldest_wait_seconds": 0,
        "soong_leases_lost": 0,
    }


@pytest.mark.spec("OPS-05.b")
async def test_steps_are_counted_by_pool_and_by_what_holds_them(scene: ContractHarness, source: SqlMetrics) -> None:
    await scene.task(*(make_step(f"s{number}") for number in range(4)), make_step("big", pool="big"))
    before = await watched(scene, source)

    await scene.claim(3)

    after = await watched(scene, source)
    assert (before["soong_steps_ready{default}"], before["soong_steps_ready{big}"]) == (4, 1)
    assert (after["soong_steps_ready{default}"], after["soong_steps_running{default}"]) == (1, 3)
    assert after["soong_slots_free{default}"] == before["soong_slots_free{default}"] - 3
    assert (after["soong_slots_free{big}"], after["soong_tasks_open"]) == (0, 1)


@pytest.mark.spec("DIS-04")
async def test_steps_to_pull_call_for_no_more_workers_and_take_no_slot(
    scene: ContractHarness, source: SqlMetrics
) -> None:
    own = await scene.start(work("own"), pulled("p"), pulled("q"))
    before = await watched(scene, source)

    await taken(scene, own, "p")

    after = await watched(scene, source)
    assert (before["soong_steps_to_pull{default}"], after["soong_steps_to_pull{default}"]) == (2, 1)
    assert before["soong_steps_running{default}"] == after["soong_steps_running{default}"] == 1
    assert before["soong_slots_free{default}"] == after["soong_slots_free{default}"]
    assert (after["soong_steps_ready{default}"], after["soong_steps_claimable{default}"]) == (0, 0)
    assert after["soong_steps_oldest_wait_seconds{default}"] == 0


@pytest.mark.spec("DIS-03")
async def test_a_limit_is_shown_with_how_far_it_is_used(scene: ContractHarness, source: SqlMetrics) -> None:
    of_session = f"session:{scene.own.session_id}"
    idle = await open_session(scene.store)
    concurrency_limits = [
        ConcurrencyLimit("pool:default", 2),
        ConcurrencyLimit("model:x", 5),
        ConcurrencyLimit(of_session, 9),
        ConcurrencyLimit(f"session:{idle.session_id}", 1),
    ]
    await scene.store.claims.set_concurrency_limits(concurrency_limits)
    await scene.task("a", make_step("b", model="x"), "c")
    await scene.claim()

    shown = await source.concurrency_limits()
    metrics = await watched(scene, source)
    listed = text_of(document_of(await WorkersSchema.read(scene.store.claims, scene.store.sessions, source)))

    assert [(bound.scope, bound.used, bound.limit) for bound in shown] == [
        ("model:x", 1, 5),
        ("pool:default", 2, 2),
        (of_session, 2, 9),
    ]
    assert (
        metrics["soong_concurrency_limit_slots{pool:default}"]
        == metrics["soong_concurrency_limit_used{pool:default}"]
        == 2
    )
    assert not any("session:" in name for name in metrics)
    assert "pool:default" in listed


async def test_the_wait_is_that_of_the_next_in_line_since_it_became_ready(
    scene: ContractHarness, source: SqlMetrics
) -> None:
    await scene.task(make_step("first"), make_step("then", depends_on=["first"]))
    claim = await scene.claim_one()
    scene.clock.advance(timedelta(seconds=100))
    await scene.complete(claim)
    scene.clock.advance(timedelta(seconds=7))

    seen = await watched(scene, source)

    assert seen["soong_steps_oldest_wait_seconds{default}"] == 7


async def test_a_step_of_low_priority_that_starves_is_seen(scene: ContractHarness, source: SqlMetrics) -> None:
    await scene.task(make_step("low", priority=-5))
    scene.clock.advance(timedelta(seconds=60))
    await scene.task(*(make_step(f"high{number}", priority=5) for number in range(3)))

    seen = await watched(scene, source)

    assert seen["soong_steps_oldest_wait_seconds{default}"] == 60


async def test_a_clock_that_is_ahead_makes_no_negative_wait(scene: ContractHarness, source: SqlMetrics) -> None:
    scene.clock.advance(timedelta(seconds=50))
    await scene.task(make_step("a"))

    seen = parsed(metrics_text(await collect(scene.store, source, FakeClock())))

    assert seen["soong_steps_oldest_wait_seconds{default}"] == 0


async def test_lost_leases_are_those_of_open_tasks(scene: ContractHarness, source: SqlMetrics) -> None:
    await scene.task(make_step("a"), make_step("b"))
    await scene.claim(2)

    await scene.expire()

    assert (await watched(scene, source))["soong_leases_lost"] == 2


async def test_questions_that_wait_are_counted_with_their_age(scene: ContractHarness, source: SqlMetrics) -> None:
    claim = await scene.start()
    request = make_request(claim)
    await scene.store.consent.raise_request(request, events=(), now_us=scene.now_us)
    asked = await watched(scene, source)
    scene.clock.advance(timedelta(seconds=30))
    waited = await watched(scene, source)

    await scene.store.consent.withdraw(
        claim.identity.run_id, request.tool_call_id, claim.fence, reason="", now_us=scene.now_us
    )

    assert asked["soong_approvals_waiting"] == 1
    assert waited["soong_approvals_oldest_wait_seconds"] >= 30
    assert (await watched(scene, source))["soong_approvals_waiting"] == 0
    assert (await scene.store.consent.request(request.id))[1] is RequestState.WITHDRAWN


# -- the list of workers


@pytest.mark.spec("DIS-04.a")
async def test_the_list_shows_who_lives_what_each_holds_and_what_waits(
    scene: ContractHarness, source: SqlMetrics
) -> None:
    gone = await scene.another_worker()
    await scene.store.sessions.set_worker_state(gone, ProcessState.GONE)
    announced = ("gpu", "host:far", "protocol:1", "version:9.9")
    other = replace(make_worker(slots=2, pools=("big",), capabilities=announced), node_name="big@far", host="far")
    await scene.store.sessions.register_worker(other)
    await scene.task(replace(make_step("a"), title="Read it"), make_step("b"), make_step("c", pool="big"))
    claim = await scene.claim_one()

    view = await WorkersSchema.read(scene.store.claims, scene.store.sessions, source)

    first, second = json.loads(json.dumps(view.model_dump()))["workers"]
    assert first["id"] == scene.worker
    assert (first["used"], first["state"]) == (1, "live")
    assert first["runs"][0]["run"] == claim.identity.run_id
    assert first["runs"][0]["step"] == claim.step_key
    assert (second["name"], second["host"], second["slots"], second["used"]) == ("big@far", "far", 2, 0)
    assert (second["labels"], second["version"], second["protocol"]) == (["gpu"], "9.9", other.protocol)
    assert second["queues"] == ["soong.big"]
    assert [(pool.pool, pool.waiting, pool.free_slots) for pool in view.pools] == [
        ("big", 1, 2),
        ("default", 1, view.workers[0].slots - 1),
    ]
    shown = text_of(document_of(view))
    assert "big@far" in shown
    assert claim.identity.run_id in shown


@pytest.mark.spec("DIS-04", "PER-13")
async def test_the_list_counts_parked_runs(scene: ContractHarness, source: SqlMetrics) -> None:
    claim = await scene.start("asks")
    request = await scene.raised(make_request(claim))
    assert await scene.store.claims.park(scene.worker, held(claim), [request.id], max_parked=1, now_us=scene.now_us)

    view = await WorkersSchema.read(scene.store.claims, scene.store.sessions, source)

    assert (view.parked, view.workers[0].runs) == (1, [])


async def test_a_list_of_no_workers_says_how_to_get_one(store: SqlStore, source: SqlMetrics) -> None:
    await store.sessions.register_owner(make_owner())

    assert "soong worker" in text_of(document_of(await WorkersSchema.read(store.claims, store.sessions, source)))


# -- over HTTP


@contextmanager
def orchestrating(url: str, redis_url: str, home: Path, *options: str) -> Iterator[tuple[WarmProcess, Path]]:
    """Run ``soong orchestrator`` as a deployment does; yield the process and the file of what it says."""
    said = home / "said"
    env = {**environ, "SOONG_DATABASE_URL": url, "SOONG_REDIS_URL": redis_url, "SOONG_AGENT_HOME": str(home)}
    with said.open("wb") as file:
        process = warm_parent().start(
            "soong.orchestrator.cli",
            ["orchestrator", *options],
            env=env,
            cwd=home,
            stdout=file.fileno(),
            stderr=file.fileno(),
        )
    try:
        yield process, said
    finally:
        process.terminate()
        process.wait(30)


def until_ready(said: Path) -> None:
    wait_until(lambda: "ready" in said.read_text(), what=said.read_text)


def answer(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.spec("OPS-05.b")
def test_an_orchestrator_answers_for_an_autoscaler_and_on_loopback_only(
    url: str, redis_url: str, tmp_path: Path
) -> None:
    port = free_port()
    with orchestrating(url, redis_url, tmp_path, "--metrics-port", str(port)) as (process, said):
        until_ready(said)

        status, body = answer(port, "/metrics")
        open_ = psutil.Process(process.pid).net_connections(kind="inet")
        listening = {connection.laddr.ip for connection in open_ if connection.laddr.port == port}

        assert status == 200
        assert parsed(body)["soong_orchestrators"] == 1
        assert answer(port, "/healthz") == (200, b"ok\n")
        assert answer(port, "/other")[0] == 404
        assert listening == {"127.0.0.1"}


def test_metrics_say_503_while_the_rows_cannot_be_read_and_the_process_is_still_healthy(
    redis_url: str, tmp_path: Path
) -> None:
    port, path = free_port(), tmp_path / "soong.db"
    with orchestrating(f"sqlite:///{path}", redis_url, tmp_path, "--metrics-port", str(port)) as (_, said):
        until_ready(said)
        for name in tmp_path.glob("soong.db*"):
            name.unlink()
        path.mkdir()

        assert answer(port, "/metrics")[0] == 503
        assert answer(port, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_said_to_be(redis_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        url = f"sqlite:///{tmp_path / 'soong.db'}"
        with orchestrating(url, redis_url, tmp_path, "--metrics-port", port) as (process, said):
            assert process.wait(30) == 1

    assert f"port {port}" in said.read_text()


def document_of(view: WorkersSchema) -> dict[str, object]:
    return view.model_dump()


ROOT = Path(__file__).parents[2]


@pytest.mark.spec("OPS-05.b")
@pytest.mark.parametrize("words", [("check", "deploy/alerts.yaml"), ("test", "tests/alerts/alerts_test.yaml")])
def test_alert_rules_are_valid_and_fire_when_they_should(words: tuple[str, str]) -> None:
    what, file = words

    done = subprocess.run(
        [promtool(), what, "rules", file], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
