"""Runs of foreign agents that stop and go on: parked, cancelled, drained, in another process (ACP-01)."""

import json
import os
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome
from soong.shared.permissions.request import Choice
from tests.integration.acp_site import EDIT, RUN, AcpSite, acp_site, gone, step
from tests.waiting import until

BUSY_S = float(os.environ.get("TEST_BUSY_S", "5"))
"""What a machine that does other things may take longer than what is promised."""
BLOCKED, COMPLETED, FAILED, RUNNING = StepStatus.BLOCKED, StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.RUNNING
YES = Choice.ALLOW_ONCE


def prompts(acp: AcpSite) -> list[str]:
    return (acp.state / "prompts.txt").read_text().split("\n---\n")[:-1]


async def acted(acp: AcpSite) -> None:
    await until((acp.state / "acted").exists)


@pytest.mark.spec("ACP-01.c", "PER-13")
@pytest.mark.parametrize("way", ["resume", "load"])
async def test_it_parks_and_the_question_is_asked_once_whichever_process_goes_on(tmp_path: Path, way: str) -> None:
    async with acp_site(tmp_path, way) as acp:
        path = acp.project / "out.txt"
        await acp.site.submit(step(("edit", str(path), None, "x"), ("say", "done")))
        await acp.site.start_worker()
        asked = await acp.question(EDIT)
        await acp.site.until_stands(asks=BLOCKED)
        await until(lambda: not acp.processes())

        await acp.site.answer(asked)
        ended = await acp.until_ended({})

        assert (ended.status, ended.outcome, ended.output) == (COMPLETED, Outcome.CLEAN, "done"), ended.error
        assert path.read_text() == "x"
        told = await acp.site.story()
        assert told["run_parked"] >= 1
        assert told["permission_requested"] == 2, "the program's question, and the edit's"
        assert [one[:14] for one in prompts(acp)][1:] == ["The connection"]
        (kept,) = acp.state.glob("s*.json")
        assert json.loads(kept.read_text())["said"][1:] == [{"outcome": "selected", "option_id": "yes"}]


@pytest.mark.spec("ACP-01.c", "PER-13")
async def test_one_that_keeps_no_session_holds_its_slot_while_it_waits(tmp_path: Path) -> None:
    async with acp_site(tmp_path, park_after_s=0.0) as acp:
        path = acp.project / "out.txt"
        await acp.site.submit(step(("edit", str(path), None, "x"), ("say", "done")))
        await acp.site.start_worker()
        asked = await acp.question(EDIT)
        (process, *_) = acp.processes()

        assert (await acp.site.steps())["asks"].status is RUNNING
        await acp.site.answer(asked)
        ended = await acp.until_ended({})

        assert (ended.output, path.read_text()) == ("done", "x")
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        assert len(prompts(acp)) == 1


@pytest.mark.spec("ACP-01.c", "EXE-07")
async def test_cancel_ends_it_with_all_that_it_has_started_within_a_second(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        await acp.site.submit(step(("hang",)))
        worker = await acp.site.start_worker()
        await acp.question(RUN)
        await acp.site.answer(await acp.question(RUN))
        await until((acp.state / "pids").exists)
        family = [psutil.Process(int(pid)) for pid in (acp.state / "pids").read_text().split()]

        worker.slots.stop_run((await acp.site.steps())["asks"].run_id, "cancel", "enough")

        await gone(family, 1.0 + BUSY_S)
        ended = await acp.until_ended({})
        assert ended.status is StepStatus.CANCELLED


@pytest.mark.spec("ACP-01.c", "DAG-09")
async def test_what_had_begun_when_its_worker_stopped_is_unknown_and_not_done_again(tmp_path: Path) -> None:
    async with acp_site(tmp_path, "resume") as acp:
        path = acp.project / "out.txt"
        await acp.site.submit(step(("edit", str(path), None, "x", "usual", "hang"), ("say", "done")))
        first = await acp.site.start_worker()
        await acp.site.answer(await acp.question(EDIT))
        await acted(acp)

        await first.drain(timedelta(seconds=0.01))
        state = next(acp.state.glob("s*.json"))
        state.write_text(state.read_text().replace('"done": 0', '"done": 1'))  # a real agent looks; this one skips
        await acp.site.start_worker()
        ended = await acp.until_ended({})

        assert (ended.status, ended.outcome, ended.output) == (COMPLETED, Outcome.PARTIAL, "done")
        assert "may or may not have happened" in prompts(acp)[1]
        (result,) = await acp.results(EDIT)
        assert "unknown_after_crash" in str(result["error"])


@pytest.mark.spec("ACP-01.c")
async def test_one_that_keeps_no_session_fails_when_its_worker_stops_and_is_tried_again_as_its_step_says(
    tmp_path: Path,
) -> None:
    async with acp_site(tmp_path) as acp:
        await acp.site.submit(step(("hang",), ("say", "done")))
        first = await acp.site.start_worker()
        await acp.site.answer(await acp.question(RUN))
        await until((acp.state / "pids").exists)

        await first.drain(timedelta(seconds=0.01))
        await acp.site.start_worker()
        ended = await acp.until_ended({})

        assert ended.status is FAILED
        assert ended.error is not None
        assert (ended.error.type, ended.error.retryable) == ("agent_session_lost", True)
        assert not acp.processes()


@pytest.mark.spec("ACP-01.c", "PER-15")
async def test_a_question_whose_agent_is_gone_is_withdrawn(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        await acp.site.submit(step(("edit", str(acp.project / "out.txt"), None, "x")))
        await acp.site.start_worker()
        asked = await acp.question(EDIT)

        for process in acp.processes():
            process.kill()

        ended = await acp.until_ended({})
        assert (ended.status, ended.error and ended.error.type) == (FAILED, "agent_failed")
        pending = await acp.site.store.consent.pending(acp.site.own.session_id)
        assert asked.id not in {one.id for one in pending}
