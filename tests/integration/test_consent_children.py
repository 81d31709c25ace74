"""What users of other systems incidents from when a child had to ask: in silence, out of sight, or not at all."""

import asyncio

import pytest
from msgspec.structs import replace

from soong.orchestrator.cli.question_text import list_text
from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import Choice
from soong.shared.tools.result import ErrorType
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, documents_of, make_call, next_owner, verdicts
from tests.model.builders import make_answer, make_step, make_task, open_worker
from tests.waiting import until


@pytest.mark.spec("PER-05", "PER-13", "PER-14")
async def test_a_childs_question_that_nobody_sees_is_in_rows_and_log_and_its_end_is_reported(
    open_bench: OpenBench,
) -> None:
    """anthropics/claude-code#36042, openai/codex#23664: background children were blocked by prompts nobody saw.

    Nobody there is a no of its own kind (QwenLM/qwen-code#4928).
    """
    async with open_bench() as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        (request,) = await bench.pending()
        await bench.settle()

        told = await bench.event(claim, EventType.PERMISSION_REQUESTED)
        listed = [question.request.id for question in await bench.store.consent.questions()]
        assert not asking.done()
        assert (told.data["request_id"], listed) == (request.id, [request.id])

        await bench.pass_time(bench.settings.responder_wait_s)
        (verdict,) = await verdicts(asking)

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_NO_CALLBACK)
        assert (await bench.event(claim, EventType.PERMISSION_FAILED)).data["reason"] == "permission_no_callback"


@pytest.mark.spec("PER-01", "PER-07")
async def test_what_is_allowed_to_the_session_serves_its_children_and_the_rest_is_asked_of_it(
    open_bench: OpenBench,
) -> None:
    """openai/codex#23324: a child neither used what had been approved nor reached whoever could approve."""
    callback = Callback([Choice.ALLOW_FOR_SESSION, Choice.DENY])
    async with open_bench(callback) as bench:
        (first, one), (second, two) = await bench.claim(2)

        (given,) = await verdicts(bench.gate(first, one).decide(make_call(first)))
        (served,) = await verdicts(bench.gate(second, two).decide(make_call(second)))
        (asked,) = await verdicts(bench.gate(second, two).decide(make_call(second, "call_2", "/work/other")))

        assert [(one.is_allowed, one.author) for one in (given, served, asked)] == [
            (True, "person"),
            (True, "grant"),
            (False, "person"),
        ]
        assert [request.identity.run_id for request in callback.shown] == [
            first.identity.run_id,
            second.identity.run_id,
        ]


@pytest.mark.spec("PER-06", "PER-13.a")
async def test_a_question_that_is_asked_again_has_lost_nothing(open_bench: OpenBench) -> None:
    """langchain-ai/deepagentsjs#130, #131: an interrupt of a child arrived without what it was about."""
    first, second = Callback(gate=asyncio.Event()), Callback()
    async with open_bench(first) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        await until(lambda: first.at_once == 1)

        await bench.detach()
        await next_owner(bench)
        bench.attach(second)
        await bench.settle()
        await verdicts(asking)

        (shown,), (again,) = first.shown, second.shown
        assert again == shown
        assert again.arguments == {"path": "/work/out/report.md", "content": "words"}


@pytest.mark.spec("PER-06", "CARD-3")
async def test_a_question_names_the_child_and_the_model_that_it_is_from(open_bench: OpenBench) -> None:
    """anomalyco/opencode#20280: which sub-agent asks, and which provider's model it is, could not be seen."""
    async with open_bench() as bench:
        task = make_task(bench.session_id, make_step())
        (step,) = task.steps
        assert step.run is not None
        identity = replace(step.run.identity, definition="reviewer", model="anthropic:claude-small")
        await bench.store.tasks.create_task(
            replace(task, steps=(replace(step, run=replace(step.run, identity=identity)),))
        )
        worker = await open_worker(bench.store)
        claim = await bench.claim_for(worker)
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        (request,) = await bench.pending()

        text = list_text(documents_of(await bench.store.consent.questions()), bench.clock.now_us())

        assert request.identity == identity
        for word in ("reviewer", "anthropic:claude-small", identity.agent_id, identity.step_title):
            assert word in text
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


# -- one path of consent for every role: no agent asks another way, and every decision reaches the run that asked
async def claim_as(bench: ConsentHarness, role: Role) -> tuple[Claim, str]:
    """Claim a step whose run is of a role, in a process of its own."""
    task = make_task(bench.session_id, make_step())
    (step,) = task.steps
    assert step.run is not None
    identity = replace(step.run.identity, role=role, definition=str(role))
    await bench.store.tasks.create_task(replace(task, steps=(replace(step, run=replace(step.run, identity=identity)),)))
    worker_id = await open_worker(bench.store)
    return await bench.claim_for(worker_id), worker_id


@pytest.mark.spec("PER-01.b", "PER-13.a", "CARD-3")
@pytest.mark.parametrize("choice", list(Choice))
@pytest.mark.parametrize("role", list(Role))
async def test_every_role_asks_the_same_callback_and_every_decision_resumes(
    open_bench: OpenBench, role: Role, choice: Choice
) -> None:
    """anthropics/claude-code#34095: asked at times, denied in silence at others; google/adk-web#121.

    All three decisions resume in the run that asked (google/adk-python#3649, langchain-ai/deepagents#554).
    """
    silent, later = Callback(gate=asyncio.Event()), Callback([Choice.DENY])
    async with open_bench(silent) as bench:
        claim, worker_id = await claim_as(bench, role)
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker_id).decide(make_call(claim)))
        (request,) = await bench.pending()
        await until(lambda: silent.at_once == 1)
        await bench.broker.close()
        await bench.store.consent.answer(make_answer(request, choice))
        await bench.detach()
        await next_owner(bench)
        bench.attach(later)
        await bench.settle()

        (verdict,) = await verdicts(asking)

        decided = (await bench.event(claim, EventType.PERMISSION_DECIDED)).data
        assert (request.identity.role, request.identity.run_id) == (role, claim.identity.run_id)
        assert verdict.is_allowed is (choice is not Choice.DENY)
        assert (decided["choice"], decided["author"], decided["request_id"]) == (str(choice), "person", request.id)
        assert [shown.identity for shown in silent.shown] == [request.identity]
        assert later.shown == []
