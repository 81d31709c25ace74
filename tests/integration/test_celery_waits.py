"""The waiting of celery steps in one process: lost backends, a send without a record, many at once (CEL-01)."""

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, signals
from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core import timing
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import BoundStep, StepKind, StepSpec, StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.store import SqlStore
from soong.shared.tools.limits import TimeLimit
from soong.worker.celery_step import CeleryResults, CeleryStepRunner
from soong.worker.heartbeat import Incarnation
from soong.worker.parking import LentSlots
from tests.integration.sql_stores import begin, claim_one, opened
from tests.waiting import until

NAME = "shop_of_this_test"


@dataclass
class Site:
    """A claimed celery step, its runner, and what goes to its broker, which is in this process."""

    store: SqlStore
    claim: Claim
    worker_id: str
    backend: str
    monkeypatch: pytest.MonkeyPatch
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = Celery("shop", broker="memory://", backend=self.backend, set_as_current=False)
        self.monkeypatch.setitem(sys.modules, NAME, SimpleNamespace(app=self.app))
        signals.before_task_publish.connect(self._count)

    def _count(self, headers: dict[str, Any] | None = None, **_: object) -> None:
        self.sent.append((headers or {})["id"])

    async def run(self, **claim: Any) -> StepEnd:
        settings = Settings(functions=(NAME,), celery_app=f"{NAME}:app")
        clock = SystemClock()
        worker = Incarnation(self.store.sessions, clock, "w", 1, (), (), worker_id=self.worker_id)
        runner = CeleryStepRunner(self.store, worker, clock, settings, LentSlots())
        spec = StepSpec("a", kind=StepKind.CELERY, call="shop.add")
        async with TimeLimit(None) as limit:
            return await runner.run(
                replace(self.claim, spec=spec, **claim), BoundStep("", {"x": 1}), limit, StopSignal()
            )


@pytest.fixture
async def site(
    tmp_path: Path, redis_tcp_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    async with opened(f"sqlite:///{tmp_path / 'soong.db'}") as store:
        session, worker_id = await begin(store)
        claim, backend = await claim_one(store, session, worker_id), getattr(request, "param", redis_tcp_url)
        yield Site(store, claim, worker_id, backend, monkeypatch)


@pytest.mark.parametrize("site", ["redis://127.0.0.1:1/0"], indirect=True)
async def test_a_result_backend_that_is_lost_fails_the_attempt(site: Site) -> None:
    site.monkeypatch.setattr(timing, "PATIENCE_S", 0.05)

    end = await site.run()

    assert end.error is not None
    assert end.error.retryable
    assert end.error.message.startswith("the result of the Celery task cannot be read, and it may still run: ")
    assert end.error.message.endswith("; start the result backend, or fix result_backend of the app")


@pytest.mark.spec("CEL-01.d")
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_task_whose_send_was_not_recorded_is_sent_unless_the_backend_has_heard_of_it(
    site: Site, is_known: bool
) -> None:
    run_id = site.claim.identity.run_id
    if is_known:
        site.app.backend.store_result(run_id, None, "STARTED")

    running = asyncio.create_task(site.run(is_resumed=True))
    await until(lambda: bool(site.sent) != is_known)
    site.app.backend.store_result(run_id, 3, "SUCCESS")
    end = await running

    assert (end.status, end.output) == (StepStatus.COMPLETED, 3)
    assert site.sent == ([] if is_known else [run_id])


@pytest.mark.spec("CEL-01.a")
async def test_a_task_that_no_worker_takes_has_its_queue_in_the_log_and_in_the_row_of_its_step(site: Site) -> None:
    site.monkeypatch.setattr(timing, "GRACE_S", 0.05)
    site.app.conf.task_routes = {"shop.*": {"queue": "reports"}}
    running = asyncio.create_task(site.run())

    async def has_progress() -> bool:
        return bool((await site.store.tasks.step(site.claim.step_key)).progress)

    await until(has_progress)
    site.app.backend.store_result(site.claim.identity.run_id, 3, "SUCCESS")
    await running

    events = await site.store.runs.events(site.claim.identity.run_id)
    assert [one.data["queue"] for one in events if one.type == EventType.CELERY_SENT] == ["reports"]
    words = r"not taken from queue 'reports' for \d+ s: is its Celery worker running\?"
    assert re.fullmatch(words, (await site.store.tasks.step(site.claim.step_key)).progress)


@pytest.mark.spec("CEL-01.b")
async def test_many_waiting_tasks_are_read_together(site: Site) -> None:
    names, threads = [f"t{number}" for number in range(300)], threading.active_count()
    site.app.backend.store_result(names[0], {"sum": 1}, "SUCCESS")
    site.app.backend.set(site.app.backend.get_key_for_task(names[1]), b"not JSON")
    results = CeleryResults(site.app)

    with redis.Redis.from_url(site.backend) as client:
        client.config_resetstat()
        found = await asyncio.gather(*map(results.read, names), return_exceptions=True)
        reads = client.info("commandstats")["cmdstat_mget"]["calls"]

    assert (found[0]["status"], found[0]["result"]) == ("SUCCESS", {"sum": 1})  # type: ignore[index]
    assert isinstance(found[1], Exception)
    assert {one["status"] for one in found[2:] if isinstance(one, dict)} == {"PENDING"}
    assert reads <= 2
    assert threading.active_count() <= threads + 4
