import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from soong.orchestrator.approvals.approval import approval_of, provenance_here, question_of
from soong.orchestrator.approvals.decide import TargetChecker
from soong.orchestrator.cli.approvals import AnswerExitCode, outcome_of, refused
from soong.orchestrator.client.bootstrap import open_artifacts, open_metrics
from soong.orchestrator.client.client import Client
from soong.orchestrator.client.home_api import Document
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.operations.authentication import Caller, Peer
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.service import find_question
from soong.orchestrator.schemas.approval import ApprovalDetail
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.question_text import list_text, show_text
from soong.orchestrator.terminal.responder import SkipQuestionError, TerminalResponder, TypedAnswer
from soong.shared.core.errors import NotFoundError, SoongError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import ApiToken, Right
from soong.shared.permissions.policy import Mode, Policy
from soong.shared.permissions.request import Choice, Provenance, Question
from soong.shared.tools.ports import Verdict
from tests.integration.conftest import OpenBench
from tests.integration.consent import HOME, ConsentHarness, documents_of, make_call, verdicts
from tests.waiting import dropped, until


async def asked(bench: ConsentHarness, folder: str = "/work/out") -> tuple["asyncio.Task[Verdict]", Question]:
    """Have a worker ask; return its waiting call and the question."""
    before = {question.request.id for question in await bench.store.consent.questions()}
    asking, new = await call(bench, folder), list[Question]()

    async def is_there() -> bool:
        new[:] = [one for one in await bench.store.consent.questions() if one.request.id not in before]
        return bool(new)

    await until(is_there)
    return asking, new[0]


async def question_named(bench: ConsentHarness, text: str) -> Question:
    return await question_of(bench.store.consent, await find_question(bench.store, text))


async def call(bench: ConsentHarness, folder: str = "/work/out") -> "asyncio.Task[Verdict]":
    """Have a worker begin a call that asks; the question may be answered at once."""
    ((claim, worker),) = await bench.claim()
    return asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim, folder=folder)))


def calls_of(bench: ConsentHarness, principal: str, provenance: Provenance) -> DirectCalls:
    """Return the operations as a command of this machine has them."""
    settings = bench.settings.model_copy(update={"principal": principal})
    client = Client(bench.store, bench.notifier, bench.subscriber, bench.clock, settings)
    service = ServiceParts(client, open_metrics(settings), open_artifacts(settings), home=HOME)
    token = ApiToken("own", principal, frozenset(Right), "", 0)
    return DirectCalls(make_routes(service), Caller(token, Peer(provenance, provenance.problem), "cli"))


async def answer(
    bench: ConsentHarness, question: Question, choice: Choice, reason: str = "", *, wait_s: int = 10, who: str = "local"
) -> tuple[int, str]:
    """Answer as `soong approvals` does; return its exit code and its sentence."""
    calls = calls_of(bench, who, await provenance_here(bench.store.sessions))
    path = f"/v1/approvals/{question.request.id}"
    body: dict[str, Json] = {"choice": str(choice), "reason": reason, "input_digest": question.request.input_digest}
    try:
        answered = await calls.reply("POST", f"{path}/answer", query={"wait": wait_s}, body=body)
    except SoongError as error:
        return refused({"id": question.request.id}, error)
    return outcome_of(answered.document, str(choice))


class FixedCalls(Value):
    """Stands for the operations of a command's own process."""

    direct: DirectCalls

    async def calls(self, *, may_start: bool) -> DirectCalls:
        return self.direct


async def api_of(bench: ConsentHarness, principal: str = "local") -> Api:
    """Return the operations for what a command does all at once."""
    own = FixedCalls(calls_of(bench, principal, await provenance_here(bench.store.sessions)))
    api = Api(is_held=True)
    api._home, api._own = None, own  # type: ignore[assignment]  # the rows of this bench
    return api


# -- answering
@pytest.mark.spec("PER-03", "PER-13", "PER-15", "CARD-3.c")
@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (Choice.ALLOW_ONCE, "allowed once by local through soong approvals: seen"),
        (Choice.ALLOW_FOR_SESSION, "allowed for the session by local through soong approvals: seen"),
        (Choice.DENY, "denied by local through soong approvals: seen"),
    ],
)
async def test_an_answer_from_another_terminal_reaches_exactly_its_call(
    open_bench: OpenBench, choice: Choice, sentence: str
) -> None:
    """Any client of the session can answer, once / for the session / no (openai/codex#45167, claude-code#47339)."""
    async with open_bench() as bench:
        asking, question = await asked(bench)

        code, said = await answer(bench, question, choice, "seen")

        (verdict,) = await verdicts(asking)
        assert (code, said.partition(": ")[2]) == (AnswerExitCode.DONE, sentence)
        assert verdict.is_allowed is (choice is not Choice.DENY)
        assert (verdict.author, verdict.reason) == ("person", "seen")
        stored = await bench.store.consent.answer_of(question.request.id)
        assert stored is not None
        assert (stored.channel, stored.input_digest) == ("cli", question.request.input_digest)


@pytest.mark.spec("PER-15")
async def test_a_second_answer_learns_who_was_first(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        asking, question = await asked(bench)
        await answer(bench, question, Choice.ALLOW_ONCE)
        await verdicts(asking)

        late = await answer(bench, question, Choice.DENY)
        listed = await answer(bench, await question_named(bench, question.request.id[-8:]), Choice.DENY)

        assert late == listed
        assert late[0] == AnswerExitCode.DECIDED
        assert late[1].endswith("was allowed once by local through soong approvals")


@pytest.mark.spec("PER-15")
async def test_a_question_that_was_withdrawn_is_answered_at_once_with_why(open_bench: OpenBench) -> None:
    """A prompt for a dead child is dismissed, not waited for (oh-my-openagent#4447, letta-ai/letta-code#2578)."""
    async with open_bench() as bench:
        asking, question = await asked(bench)
        await dropped(asking)

        code, said = await answer(bench, question, Choice.ALLOW_ONCE)

        assert (code, "withdrawn" in said) == (AnswerExitCode.DECIDED, True)
        assert await bench.store.consent.questions() == []
        approval = await approval_of(
            bench.store, await question_named(bench, question.request.id), TargetChecker((), bench.settings.home)
        )
        assert approval.withdrawn == "its call was cancelled"
        shown = ApprovalDetail.of_question(approval.question, approval).model_dump()
        assert "its call was cancelled" in show_text(shown, 0, is_full=False)


@pytest.mark.spec("PER-13.g")
async def test_another_principal_may_not_answer_and_the_question_stays(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        asking, question = await asked(bench)

        code, said = await answer(bench, question, Choice.ALLOW_ONCE, wait_s=0, who="mallory")

        assert code == AnswerExitCode.NOT_ALLOWED
        assert said == "not answered: its session is answered by 'local', and you are 'mallory'"
        assert await bench.store.consent.answer_of(question.request.id) is None
        await answer(bench, question, Choice.ALLOW_ONCE)
        assert (await verdicts(asking))[0].is_allowed


@pytest.mark.spec("PER-08", "PER-20")
@pytest.mark.parametrize(
    ("policy", "folder", "why"),
    [
        (Policy(mode=Mode.STRICT), "/work/out", "no session grant is offered for this call"),
        (Policy(), HOME, "no session grant is offered for this call"),
    ],
    ids=["strict", "a whole home"],
)
async def test_a_grant_is_refused_where_none_is_offered(
    open_bench: OpenBench, policy: Policy, folder: str, why: str
) -> None:
    async with open_bench(policy=policy) as bench:
        asking, question = await asked(bench, folder)

        code, said = await answer(bench, question, Choice.ALLOW_FOR_SESSION)

        assert (code, why in said) == (AnswerExitCode.NOT_ALLOWED, True)
        assert (await answer(bench, question, Choice.ALLOW_ONCE))[0] == AnswerExitCode.DONE
        assert (await verdicts(asking))[0].is_allowed


# -- looking
@pytest.mark.spec("PER-06")
async def test_what_is_listed_says_who_asks_for_what_and_what_a_grant_would_cover(open_bench: OpenBench) -> None:
    """No bare tool name (QwenLM/qwen-code#3960, github/copilot-cli#3684): step, agent, model, target, risk, scope."""
    async with open_bench() as bench:
        asking, question = await asked(bench)
        who = question.request.identity

        text = list_text(documents_of(await bench.store.consent.questions()), bench.clock.now_us())

        for word in (
            question.request.id[-8:],
            "code.write_file  write",
            "/work/out/report.md",
            f"input  {json.dumps(dict(question.request.arguments))}"[:40],
            who.step_title,
            who.task_id,
            who.agent_id,
            who.model or who.definition,
            "grant  /work/out",
            "1 question waits",
        ):
            assert word in text
        await dropped(asking)


@pytest.mark.spec("PER-06")
async def test_all_about_a_question_is_read_from_rows_with_its_lineage(open_bench: OpenBench) -> None:
    """Risk, hook result, advice and reason are told (anthropics/claude-code#85023, #16529)."""
    async with open_bench() as bench:
        asking, question = await asked(bench)
        request = question.request

        approval = await approval_of(bench.store, question, TargetChecker((), bench.settings.home))
        said = json.loads(json.dumps(ApprovalDetail.of_question(approval.question, approval).model_dump()))

        assert [parent["run_id"] for parent in said["parents"]] == [request.identity.parent_run_id]
        assert said["session"]["principal"] == "local"
        assert said["full_input"]["is_exact"] is True
        assert {name: said[name] for name in ("risk", "hook_result", "suggested", "cwd", "session_grant")} == {
            "risk": "write",
            "hook_result": "none",
            "suggested": "allow_once",
            "cwd": "/project",
            "session_grant": "/work/out",
        }
        text = show_text(said, bench.clock.now_us(), is_full=True)
        assert all(word in text for word in (request.id, request.input_digest, request.identity.parent_agent_id))
        await dropped(asking)


async def test_a_question_is_found_by_either_end_of_its_id_and_what_waits_goes_first(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        asking, question = await asked(bench)
        other, second = await asked(bench, "/work/two")
        key = question.request.id

        assert await find_question(bench.store, key) == key
        assert await find_question(bench.store, key[-6:]) == key
        with pytest.raises(UsageError, match="fits 2 permission requests"):
            await find_question(bench.store, "req_")
        with pytest.raises(NotFoundError):
            await find_question(bench.store, "zzzzzzzz")
        await answer(bench, second, Choice.DENY)
        await verdicts(other)
        assert await find_question(bench.store, "req_") == key
        await dropped(asking)


# -- a terminal that answers for all sessions
class Person:
    """Answers yes, and remembers what was shown."""

    def __init__(self) -> None:
        self.shown: list[Document] = []
        self.at_once = self.most_at_once = 0

    async def __call__(self, question: Document) -> TypedAnswer:
        self.shown.append(question)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return TypedAnswer(Choice.ALLOW_ONCE)


async def watching(
    bench: ConsentHarness,
    person: Callable[[Document], Awaitable[TypedAnswer]],
    sentences: list[str],
    principal: str = "local",
) -> None:
    """Have somebody answer for all sessions, from now on."""
    responder = TerminalResponder(await api_of(bench, principal), "", person, sentences.append, lambda _: None)
    bench.tasks.append(asyncio.get_running_loop().create_task(responder.run()))


@pytest.mark.spec("PER-13", "PER-01")
async def test_one_terminal_answers_for_every_session_of_its_principal_one_at_a_time(open_bench: OpenBench) -> None:
    async with (
        open_bench() as bench,
        open_bench(
            store=bench.store, notifier=bench.notifier, subscriber=bench.subscriber, signer=bench.signer
        ) as other,
    ):
        person = Person()
        await watching(bench, person, [])

        answers = await verdicts(await call(bench), await call(other))

        assert all(verdict.is_allowed for verdict in answers)
        assert {one["identity"]["session_id"] for one in person.shown} == {bench.session_id, other.session_id}
        assert person.most_at_once == 1


async def test_questions_of_other_principals_are_not_shown(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        stranger, person = Person(), Person()
        await watching(bench, stranger, [], "mallory")
        asking, _ = await asked(bench)
        await watching(bench, person, [])

        assert (await verdicts(asking))[0].is_allowed
        assert stranger.shown == []


async def test_a_question_that_is_put_off_comes_after_the_others_and_comes_again(open_bench: OpenBench) -> None:
    order: list[str] = []

    async def person(question: Document) -> TypedAnswer:
        order.append(question["session_grant"])
        if len(order) <= 2:
            raise SkipQuestionError
        return TypedAnswer(Choice.ALLOW_ONCE)

    async with open_bench() as bench:
        one, _ = await asked(bench, "/work/1")
        two, _ = await asked(bench, "/work/2")
        three, _ = await asked(bench, "/work/3")
        await watching(bench, person, [])

        assert all(verdict.is_allowed for verdict in await verdicts(one, two, three))
        assert order == ["/work/1", "/work/2", "/work/3", "/work/1", "/work/2"]
