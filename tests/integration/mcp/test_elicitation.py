"""A real server that needs a person: pages before a call, hooks around what it asks, on both wires."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from soong.shared.core.jsontext import Json
from soong.shared.tools.definition import ElicitationAnswer
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import ElicitationOutcome, HookCall, NamedHook
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType
from tests.integration.mcp.scene import McpScene, answering, mcp_scene, stdio_config
from tests.unit.tools.parts import text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = Path(__file__).with_name("asking_server.py")
PAGES: list[Json] = ["https://sign-in.example.org/a?x=1", "https://example.net/b"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["handshake", "stateless"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpScene]:
    text = stdio_config(more=f'protocol = "{request.param}"', program=SERVER)
    async with mcp_scene(tmp_path_factory.mktemp("asking"), text) as made:
        yield made


@pytest.fixture
def key(request: pytest.FixtureRequest, scene: McpScene) -> str:
    """A name under which the server counts the calls of one test."""
    scene.log.notes.clear()
    return str(request.node.name)


def questions(scene: McpScene, before: int) -> list[GateCall]:
    return [one for one in scene.gate.asked[before:] if one.is_under_way and not one.is_answered]


def hook_runs(scene: McpScene) -> list[dict[str, Any]]:
    return [dict(data) for kind, data in scene.log.notes if kind == "hook_run"]


async def made_calls(scene: McpScene, key: str) -> int:
    counted = (await scene.call("mcp.t.count", key=key)).data
    assert isinstance(counted, dict)
    return int(counted["result"])


@contextmanager
def hooked(scene: McpScene, before: Any = None, after: Any = None) -> Iterator[None]:
    """Run calls with these functions around what the server asks."""
    scene.hooks = Hooks(
        elicitation=() if before is None else (NamedHook("first", before),),
        elicitation_result=() if after is None else (NamedHook("last", after),),
    )
    try:
        yield
    finally:
        scene.hooks = Hooks()


@pytest.mark.spec("MCP-01.k")
async def test_after_a_yes_to_each_page_the_call_is_made_once_more(scene: McpScene, key: str) -> None:
    before = len(scene.gate.asked)
    with answering(scene, "", ""):
        shared = await scene.call("mcp.t.share", key=key, pages=PAGES)

    assert text_of(shared) == "shared at call 2"
    first, second = questions(scene, before)
    assert first.definition.name == "mcp.t.elicitation/create"
    assert (first.permission_input["url"], first.permission_input["host"]) == (PAGES[0], "sign-in.example.org")
    assert "a page of sign-in.example.org. Soong does not open it" in first.target.preview
    assert "when you have finished there, has the call made again" in first.target.preview
    assert second.permission_input["message"] == "Sign in, 2"
    assert [said.partition(")")[0] for said in scene.progress] == [
        "the server asks a person (accept: a person accepted"
    ] * 2


@pytest.mark.spec("MCP-01.k")
async def test_a_no_to_one_page_declines_and_the_call_is_not_made_again(scene: McpScene, key: str) -> None:
    before = len(scene.gate.asked)
    with answering(scene, "", None):
        refused = await scene.call("mcp.t.share", key=key, pages=[*PAGES, "https://example.com/"])

    assert refused.error is not None
    assert refused.error.type is ErrorType.ELICITATION_DECLINED
    assert "needs a person's input and got none: sign in first" in refused.error.message
    assert len(questions(scene, before)) == 2
    assert await made_calls(scene, key) == 1


@pytest.mark.spec("MCP-01.k")
async def test_a_server_that_wants_a_page_again_after_the_yes_ends_the_call(scene: McpScene, key: str) -> None:
    before = len(scene.gate.asked)
    with answering(scene, "", ""):
        refused = await scene.call("mcp.t.share", key=key, pages=PAGES[:1], refusals=5)

    assert refused.error is not None
    assert refused.error.type is ErrorType.ELICITATION_DECLINED
    assert "still wants a page opened after a yes" in refused.error.message
    assert len(questions(scene, before)) == 1
    assert await made_calls(scene, key) == 2


@pytest.mark.spec("MCP-01.k")
async def test_nobody_is_asked_unless_every_page_can_be_shown(scene: McpScene, key: str) -> None:
    before = len(scene.gate.asked)
    form: Json = {"mode": "form", "message": "x", "requestedSchema": {"type": "object", "properties": {}}}
    data: list[Json] = [{}, {"elicitations": []}, {"elicitations": ["x"]}, {"elicitations": [form]}]
    bad = [
        await scene.call("mcp.t.share", key=key, pages=[PAGES[0], "http://example.org/"]),
        await scene.call("mcp.t.share", key=f"{key}2", pages=[f"https://example.org/{n}" for n in range(11)]),
        *[await scene.call("mcp.t.garble", key=key, data=one) for one in data],
    ]

    assert [one.error.type for one in bad if one.error is not None] == [ErrorType.ELICITATION_DECLINED] * len(bad)
    assert questions(scene, before) == []


@pytest.mark.spec("MCP-01.k", "MCP-01.m")
async def test_hooks_fire_around_a_page_before_the_tool_resumes(scene: McpScene, key: str) -> None:
    seen: list[tuple[str, Any]] = []

    async def before(call: HookCall) -> ElicitationOutcome:
        seen.append(("asks", call.call_input["url"]))
        return ElicitationOutcome()

    async def after(_call: HookCall, answer: ElicitationAnswer) -> ElicitationOutcome:
        seen.append(("answered", answer.action))
        return ElicitationOutcome()

    with hooked(scene, before, after), answering(scene, ""):
        shared = await scene.call("mcp.t.share", key=key, pages=PAGES[:1])

    assert seen == [("asks", PAGES[0]), ("answered", "accept")]
    assert text_of(shared) == "shared at call 2"
    assert [(run["hook"], run["stage"], run["outcome"]) for run in hook_runs(scene)] == [
        ("first", "elicitation", "none"),
        ("last", "elicitation_result", "none"),
    ]


@pytest.mark.spec("MCP-01.m")
async def test_a_hook_answers_in_the_persons_place(scene: McpScene, key: str) -> None:
    del key
    before = len(scene.gate.asked)

    async def answers(call: HookCall) -> ElicitationOutcome:
        assert call.definition.name == "mcp.t.elicitation/create"
        schema: Any = call.call_input["schema"]
        assert sorted(schema["properties"]) == ["colour", "size"]
        return ElicitationOutcome("accept", {"colour": "blue", "size": 7})

    with hooked(scene, answers):
        ordered = await scene.call("mcp.t.order")

    assert text_of(ordered) == "accept colour='blue' size=7"
    assert questions(scene, before) == []
    (run,) = hook_runs(scene)
    assert (run["outcome"], run["content_diff"]) == ("accept", {"colour": [None, "blue"], "size": [None, 7]})
    assert any("(accept: the hook 'first' answered accept)" in said for said in scene.progress)


@pytest.mark.spec("MCP-01.d")
async def test_a_person_may_close_a_question_without_a_choice(scene: McpScene) -> None:
    async def cancel() -> None:
        if scene.gate.asked[-1].is_under_way:
            scene.gate.verdict = Verdict(is_allowed=False, author="person", reason="cancel: later")

    with answering(scene):
        scene.gate.before = cancel
        ordered = await scene.call("mcp.t.order")

    assert text_of(ordered) == "cancel None"
