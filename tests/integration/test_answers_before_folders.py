"""In an orchestrator as it is built, run folders wait while its broker hears of questions."""

from pathlib import Path

import pytest

from soong.orchestrator.approvals.broker import ApprovalBroker
from soong.orchestrator.owner.bootstrap import build
from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.core.settings import load_settings
from tests.waiting import until


@pytest.mark.spec("EVT-03.d")
async def test_folders_wait_a_moment_after_a_question_was_heard_of(tmp_path: Path, redis_url: str) -> None:
    settings = load_settings(agent_home=tmp_path, database_url=f"sqlite:///{tmp_path}/s.db", redis_url=redis_url)
    orchestrator = await build(settings)
    broker, folders = orchestrator.parts.broker, orchestrator.parts.recorder
    assert isinstance(broker, ApprovalBroker)
    assert isinstance(folders, RunArchive)
    await orchestrator.start()
    try:
        before = folders.waits_while()
        await broker.look_at("session_none")
        meanwhile = folders.waits_while()
        await until(lambda: not folders.waits_while())
    finally:
        await orchestrator.stop()

    assert (before, meanwhile) == (False, True)
