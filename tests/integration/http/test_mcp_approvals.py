from typing import Any

import pytest
from mcp_types import ElicitRequestParams, ElicitResult

from soong.shared.permissions.access.token import Right
from soong.shared.permissions.request import Choice
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.mcp_clients import WIRES, done, mcp_client, refused
from tests.integration.http.scene import ADA, HttpHarness

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("MCP-02.c", "PER-13.g")]


class Person:
    """Somebody at a client that can ask. Remembers what was shown."""

    def __init__(self, action: str = "accept", **content: Any) -> None:
        self.answer = ElicitResult(action=action, content=content or None)
        self.shown: list[ElicitRequestParams] = []

    async def __call__(self, _context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.shown.append(params)
        return self.answer


@pytest.mark.spec("PER-03", "PER-06.a", "CARD-3.c")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("choice", list(Choice))
async def test_a_question_is_waited_for_shown_and_answered(scene: HttpHarness, wire: str, choice: Choice) -> None:
    request = await scene.ask()
    async with mcp_client(scene, await scene.token(ADA, (Right.APPROVE,)), wire) as client:
        waited = await done(client, "wait_for_task", task=request.identity.task_id)
        (listed,) = (await done(client, "list_approvals"))["items"]
        shown = await done(client, "show_approval", approval=request.id)
        answered = await done(
            client,
            "answer_approval",
            approval=request.id,
            choice=choice,
            reason="as agreed",
            input_digest=listed["input_digest"],
        )
    verdict = await scene.verdict()
    answer = await scene.bench.store.consent.answer_of(request.id)

    assert waited["approvals"] == [request.id]
    assert "answer_approval" in waited["hint"]
    assert (listed["tool"], listed["target"]["shown"], listed["may_answer"]) == (request.tool, request.shown, True)
    assert {name: shown[name] for name in listed} == listed
    assert answered["answer"]["principal"] == ADA
    assert (verdict.is_allowed, verdict.reason) == (choice is not Choice.DENY, "as agreed")
    assert answer is not None
    assert (answer.channel, answer.principal, str(answer.metadata["token"])[:4]) == ("mcp", ADA, "tok_")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_can_ask_asks_its_person_and_the_model_takes_no_part(scene: HttpHarness, wire: str) -> None:
    request = await scene.ask()
    person = Person(choice="deny", reason="not there")
    async with mcp_client(scene, await scene.token(ADA), wire, elicitation_callback=person) as client:
        answered = await done(client, "answer_approval", approval=request.id)
    verdict = await scene.verdict()

    assert len(person.shown) == 1
    assert request.shown in person.shown[0].message
    assert request.tool in person.shown[0].message
    assert (answered["answer"]["choice"], answered["answer"]["principal"]) == ("deny", ADA)
    assert (verdict.is_allowed, verdict.reason) == (False, "not there")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_dialog_that_is_closed_is_no_answer(scene: HttpHarness, wire: str, action: str) -> None:
    request = await scene.ask()
    async with mcp_client(scene, await scene.token(ADA), wire, elicitation_callback=Person(action)) as client:
        said = await refused(client, "answer_approval", approval=request.id)

    assert "it still waits" in said
    assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("MCP-02.d")
@pytest.mark.parametrize("wire", WIRES)
async def test_without_a_dialog_or_the_right_nothing_is_answered(scene: HttpHarness, wire: str) -> None:
    request = await scene.ask()
    answer = {"approval": request.id, "choice": "allow_once", "input_digest": request.input_digest}
    async with mcp_client(scene, await scene.token(ADA), wire) as client:
        no_dialog = await refused(client, "answer_approval", approval=request.id)
        other_input = await refused(client, "answer_approval", **{**answer, "input_digest": "0" * 64})
    person = Person(choice="allow_once")
    async with mcp_client(scene, await scene.token(ADA, (Right.RUN,)), wire, elicitation_callback=person) as client:
        no_right = [await refused(client, "answer_approval", **more) for more in (answer, {"approval": request.id})]
        (listed,) = (await done(client, "list_approvals"))["items"]
        waited = await done(client, "wait_for_task", task=request.identity.task_id)

    assert "cannot ask its user" in no_dialog
    assert "not the input which waits" in other_input
    assert all("needs the right 'approve'" in said for said in no_right)
    assert person.shown == []
    assert (listed["may_answer"], listed["may_not_because"]) == (False, "the token does not carry the right 'approve'")
    assert "soong approvals watch" in waited["hint"]
    assert await scene.bench.store.consent.answer_of(request.id) is None
