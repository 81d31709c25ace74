"""Agents of others as children: the scripted ACP agent, run, parked, cancelled and resumed by real workers (ACP-01)."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, Step
from soong.shared.permissions.request import Choice
from tests.integration.acp_site import EDIT, EXECUTE, RUN, AcpSite, acp_site, gone, step
from tests.waiting import until

DANGEROUS = "[tools]\ndangerous = true\n"
YES, NO, SESSION = Choice.ALLOW_ONCE, Choice.DENY, Choice.ALLOW_FOR_SESSION
COMPLETED, FAILED = StepStatus.COMPLETED, StepStatus.FAILED


def said(ended: Step) -> list[Any]:
    """Return what the agent was answered, as it reports it."""
    assert ended.status is COMPLETED, ended.error
    return list(ended.output["said"][1:])  # type: ignore[index, call-overload, arg-type]  # an object by the agent's script


@pytest.mark.spec("ACP-01.a", "ACP-01.c", "DIS-11")
async def test_its_program_is_asked_for_and_its_last_message_is_the_output(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(
            *(("think", "hm"), ("plan", "first"), ("cost", 0.25), ("unasked", "Looked around")),
            *(("say", "all "), ("say", "done")),
        )

        assert (ended.status, ended.outcome, ended.output) == (COMPLETED, Outcome.CLEAN, "all done")
        events = await acp.site.story()
        assert (events["agent_plan"], events["permission_requested"]) == (1, 1)
        (started,) = await acp.results(RUN)
        assert "scripted 1" in str(started["data"])
        run = await acp.site.store.runs.run(ended.run_id)
        assert (run.usage.input_tokens, run.usage.output_tokens, run.is_tainted) == (20, 10, True)
        assert str(run.usage.cost_usd) == "0.25", "what it reports counts to the limits of its run"
        assert not acp.processes()
        told = [one.data for one in await acp.site.store.runs.events(ended.run_id) if one.type == "agent_call"]
        assert [(one["title"], one["asked"]) for one in told] == [("Looked around", False)]
        (result,) = await acp.results("acp.scripted.read")
        assert result["metadata"] == {"asked": False, "reported_by": "agent"}


@pytest.mark.spec("ACP-01.b")
async def test_reads_writes_and_commands_of_its_are_calls_of_ours(tmp_path: Path) -> None:
    answers = {"code.write_file": YES, "code.run_command": YES}
    async with acp_site(tmp_path, config=DANGEROUS) as acp:
        (acp.project / "a.txt").write_text("one\ntwo\nthree\n")
        new = acp.project / "new" / "b.txt"

        ended = await acp.ended(
            ("read", str(acp.project / "a.txt")),
            ("read", "a.txt", 2, 1),
            ("write", str(new), "written"),
            ("terminal", "cat", "a.txt"),
            ("report",),
            answers=answers,
        )

        whole, line, written, terminal, code, output = said(ended)
        assert (whole, line, written) == ({"content": "one\ntwo\nthree\n"}, {"content": "two\n"}, {})
        assert (terminal["terminalId"], code) == ("terminal-1", {"exitCode": 0})
        assert output["output"] == "one\ntwo\nthree\n"
        assert new.read_text() == "written"
        assert len(await acp.results("code.read_file")) == 2
        assert (await acp.site.story())["tool_completed"] == 5


@pytest.mark.spec("ACP-01.b", "DAG-10")
async def test_a_no_leaves_no_file_and_the_agent_reads_it_and_is_asked_to_finish(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        own, ours = acp.project / "own.txt", acp.project / "ours.txt"

        ended = await acp.ended(
            *(("edit", str(own), None, "x"), ("write", str(ours), "x"), ("stop", "cancelled"), ("report",)),
            answers={EDIT: NO, "code.write_file": NO},
        )

        by_itself, by_us = said(ended)
        assert by_itself == {"outcome": "selected", "optionId": "no"}
        assert "denied" in str(by_us)
        assert (own.exists(), ours.exists()) == (False, False)
        assert ended.outcome is Outcome.PARTIAL
        assert "refused" in (acp.state / "prompts.txt").read_text().split("\n---\n")[1]


@pytest.mark.spec("ACP-01.b", "ACP-01.c", "CARD-3.b")
async def test_its_question_shows_diff_and_lineage_and_a_yes_is_for_this_call_alone(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        path = acp.project / "a.txt"
        path.write_text("old\n")
        await acp.site.submit(step(("edit", str(path), "old\n", "new\n"), ("report",)))
        await acp.site.start_worker()

        asked = await acp.question(EDIT)

        run = (await acp.site.steps())["asks"].run_id
        assert (asked.identity.run_id, asked.identity.definition) == (run, "acp:scripted")
        assert asked.identity.parent_run_id
        assert (asked.target_kind, asked.shown, asked.scope) == ("path", str(path), str(acp.project))
        assert "-old\n+new" in asked.preview
        await acp.site.answer(asked)
        ended = await acp.until_ended({})
        assert said(ended) == [{"outcome": "selected", "optionId": "yes"}]
        assert path.read_text() == "new\n"
        (result,) = await acp.results(EDIT)
        assert result["data"] == {"status": "completed", "reported_by": "agent"}


@pytest.mark.spec("ACP-01.b", "PER-04")
async def test_a_session_grant_is_ours_and_the_agent_gets_a_yes_for_each_call(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        one, two = str(acp.project / "1.txt"), str(acp.project / "2.txt")

        ended = await acp.ended(
            ("edit", one, None, "1"), ("edit", two, None, "2"), ("report",), answers={EDIT: SESSION}
        )

        assert said(ended) == [{"outcome": "selected", "optionId": "yes"}] * 2
        assert len(await acp.results(EDIT)) == 2


@pytest.mark.spec("ACP-01.b")
async def test_an_option_that_grants_more_or_stands_for_two_things_is_never_chosen(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        file = acp.project / "x.txt"
        path = str(file)

        ended = await acp.ended(
            *(("edit", path, None, "x", "always"), ("edit", path, None, "x", "forged"), ("report",)),
            answers={EDIT: YES},
        )

        assert said(ended) == [{"outcome": "selected", "optionId": "no"}] * 2
        assert not file.exists()
        assert (await acp.site.story())["security"] == 2


@pytest.mark.spec("ACP-01.b", "CMD-06.a")
@pytest.mark.parametrize(
    ("config", "tools"), [("", None), (DANGEROUS, ["code.read_file", "code.write_file"])], ids=["by config", "by step"]
)
async def test_a_command_of_its_own_needs_what_our_commands_need(
    tmp_path: Path, config: str, tools: list[str] | None
) -> None:
    more = {} if tools is None else {"allowed_tools": tools}
    async with acp_site(tmp_path, config=config) as acp:
        marks = tmp_path / "ran"

        ended = await acp.ended(("run", f"touch {marks}"), ("report",), answers={EXECUTE: YES}, **more)

        assert said(ended) == [{"outcome": "selected", "optionId": "no"}]
        assert not marks.exists()
        (result,) = await acp.results(EXECUTE)
        assert "tool_not_available" in str(result["error"])


@pytest.mark.spec("ACP-01.b")
async def test_a_command_that_it_asks_for_is_shown_as_it_states_it_and_runs_once_allowed(tmp_path: Path) -> None:
    async with acp_site(tmp_path, config=DANGEROUS) as acp:
        marks = tmp_path / "ran"
        await acp.site.submit(step(("run", f"touch {marks}"), ("report",)))
        await acp.site.start_worker()

        asked = await acp.question(EXECUTE)

        assert asked.is_dangerous
        assert asked.shown == f"touch {marks} in {acp.project}"
        await acp.site.answer(asked)
        assert said(await acp.until_ended({})) == [{"outcome": "selected", "optionId": "yes"}]
        assert marks.exists()


@pytest.mark.spec("ACP-01.b")
async def test_a_file_that_changes_while_it_is_asked_is_not_written(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        path = acp.project / "a.txt"
        path.write_text("old")
        await acp.site.submit(step(("edit", str(path), "old", "new"), ("report",)))
        await acp.site.start_worker()
        asked = await acp.question(EDIT)
        path.write_text("changed meanwhile")

        await acp.site.answer(asked)

        assert said(await acp.until_ended({})) == [{"outcome": "selected", "optionId": "no"}]
        assert path.read_text() == "changed meanwhile"


@pytest.mark.spec("ACP-01.c")
async def test_a_program_that_is_not_permitted_is_not_started(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(("say", "x"), answers={RUN: NO})

        assert (ended.status, ended.error and ended.error.type) == (FAILED, "permission_denied")
        assert not list(acp.state.iterdir())


@pytest.mark.spec("ACP-01.c")
@pytest.mark.parametrize(
    ("corrected", "status"), [('```json\n{"n": 3}\n```', COMPLETED), ("still none", FAILED)], ids=["corrected", "not"]
)
async def test_an_output_that_breaks_its_schema_is_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corrected: str, status: StepStatus
) -> None:
    monkeypatch.setenv("AGENT_CORRECTED", corrected)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with acp_site(tmp_path, env=["AGENT_CORRECTED"]) as acp:
        ended = await acp.ended(("say", 'It is ```json\n{"n": "three"}\n```'), output=schema)

        assert ended.status is status
        assert ended.output == ({"n": 3} if status is COMPLETED else None)
        assert (acp.state / "prompts.txt").read_text().count("\n---\n") == 2


@pytest.mark.spec("ACP-01.c", "DIS-07")
@pytest.mark.parametrize(
    ("actions", "reason", "type"),
    [
        ([("unasked", "a"), ("say", "b"), ("hang",)], EndReason.MAX_TURNS, "max_turns"),
        ([("stop", "max_tokens")], EndReason.TOKEN_LIMIT, "token_limit"),
        ([("stop", "refusal")], EndReason.FAILED, "refusal"),
        ([("die",)], EndReason.FAILED, "agent_failed"),
        ([("garbage", 60), ("hang",)], EndReason.FAILED, "agent_protocol"),
        ([("hang",)], EndReason.FAILED, "agent_silent"),
    ],
    ids=["turns", "tokens", "refusal", "it dies", "garbage", "silence"],
)
async def test_what_ends_its_run_ends_its_program(
    tmp_path: Path, actions: list[tuple[Any, ...]], reason: EndReason, type: str
) -> None:
    async with acp_site(tmp_path, silence_s=1.0 if type == "agent_silent" else 60.0, max_turns=1) as acp:
        ended = await acp.ended(*actions)

        run = await acp.site.store.runs.run(ended.run_id)
        assert (ended.status, run.end_reason) == (FAILED, reason)
        assert ended.error is not None
        assert ended.error.type == type
        assert not acp.processes()


@pytest.mark.spec("ACP-01.c", "DIS-07.e")
async def test_its_turns_count_for_the_limits_of_its_task(tmp_path: Path) -> None:
    turns = [("unasked", "a"), ("say", "b"), ("unasked", "c"), ("say", "d"), ("hang",)]
    async with acp_site(tmp_path) as acp:
        await acp.site.submit(step(*turns), limits={"max_turns": 2})
        await acp.site.start_worker()
        ended = await acp.until_ended({RUN: Choice.ALLOW_ONCE})

        run = await acp.site.store.runs.run(ended.run_id)
        assert (ended.status, run.end_reason) == (FAILED, EndReason.MAX_TURNS)
        assert ended.error is not None
        assert ended.error.type == "limit_exceeded"
        assert ended.error.message == "the task has reached its limit max_turns: 2 of 2 model turns are used"
        assert not acp.processes()


@pytest.mark.spec("ACP-01.c")
async def test_it_works_in_the_mode_that_asks_most_and_ends_when_it_leaves_it(tmp_path: Path) -> None:
    async with acp_site(tmp_path, "modes") as acp:
        ended = await acp.ended(("mode", "auto"), ("hang",))

        assert ended.error is not None
        assert ended.error.type == "agent_changed_mode"
        kept = json.loads(next(acp.state.glob("s*.json")).read_text())
        assert kept["said"][1] == {"mode": "ask"}


BUSY_S = float(os.environ.get("TEST_BUSY_S", "5"))
"""What a machine that does other things may take longer than what is promised."""
BLOCKED, RUNNING = StepStatus.BLOCKED, StepStatus.RUNNING


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
        assert json.loads(kept.read_text())["said"][1:] == [{"outcome": "selected", "optionId": "yes"}]


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
