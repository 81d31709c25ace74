"""An orchestrator that ends, however it does, leaves no connection to Redis."""

from pathlib import Path

import pytest
from redis import Redis

from soong.orchestrator.owner.bootstrap import build
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.wire.notifier import queue_key
from tests.model.builders import make_session, make_step, make_task, open_worker
from tests.waiting import until


@pytest.mark.spec("OPS-06")
@pytest.mark.parametrize("how", ["stop", "abandon"])
async def test_an_orchestrator_that_has_dispatched_leaves_no_connection(
    tmp_path: Path, redis_url: str, how: str
) -> None:
    settings = load_settings(agent_home=tmp_path, database_url=f"sqlite:///{tmp_path}/s.db", redis_url=redis_url)
    with Redis.from_url(redis_url, client_name="watcher", decode_responses=True) as watcher:
        before = {one["id"] for one in watcher.client_list()}  # of others on this server, our own among them

        def connections() -> int:
            return len([one for one in watcher.client_list() if one["id"] not in before])

        orchestrator = await build(settings)
        store = orchestrator.parts.store
        await open_worker(store)
        await orchestrator.start()
        session = make_session()
        await store.sessions.open_session(session)
        await store.tasks.create_task(make_task(session.id, make_step("a", kind=StepKind.PYTHON)))
        await orchestrator.reconcile([])
        await until(lambda: watcher.llen(queue_key("default")) > 0)
        assert connections() > 0

        await (orchestrator.stop() if how == "stop" else orchestrator.abandon())

        await until(lambda: connections() == 0)
