"""A real server that asks: pages and hooks around a call, and the callbacks of a session, on both wires."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from soong import (
    Choice,
    DirectSession,
    ElicitationAnswer,
    ElicitationCallback,
    ElicitationRequest,
    JsonObject,
    PermissionDecision,
    PermissionRequest,
    open_tools,
)
from soong.shared.core.config import parse_config
from soong.shared.core.jsontext import Json
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import ElicitationOutcome, HookCall, NamedHook
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.mcp.toolset import servers_of
from tests.integration.mcp.scene import McpScene, answering, look_once, mcp_scene, stdio_config
from tests.unit.tools.parts import error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = Path(__file__).with_name("asking_server.py")
PAGES: list[Json] = ["https://sign-in.example.org/a?x=1", "https://example.net/b"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["handshake", "stateless"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpScene]:
    text = stdio_config(more=f'protocol = "{request.param}"', program=SERVER)
    async with mcp_scene(tmp_path_factory.mktemp("asking"), text, is_known=True) as made:
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

    assert error_of(refused).type is ErrorType.ELICITATION_DECLINED
    assert "needs a person's input and got none: sign in first" in error_of(refused).message
    assert len(questions(scene, before)) == 2
    assert await made_calls(scene, key) == 1


@pytest.mark.spec("MCP-01.k")
async def test_a_server_that_wants_a_page_again_after_the_yes_ends_the_call(scene: McpScene, key: str) -> None:
    before = len(scene.gate.asked)
    with answering(scene, "", ""):
        refused = await scene.call("mcp.t.share", key=key, pages=PAGES[:1], refusals=5)

    assert error_of(refused).type is ErrorType.ELICITATION_DECLINED
    assert "still wants a page opened after a yes" in error_of(refused).message
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


ORDER: JsonObject = {"colour": "blue", "size": 7}


async def allows(request: PermissionRequest) -> PermissionDecision:
    assert not request.takes_words, "a question of a server reached the callback for permissions"
    return PermissionDecision(Choice.ALLOW_ONCE)


def saying(*answers: Any) -> tuple[list[ElicitationRequest], ElicitationCallback]:
    """Return a callback that gives these answers in turn, the last one for ever, and what it is asked."""
    asked: list[ElicitationRequest] = []

    async def says(request: ElicitationRequest) -> ElicitationAnswer:
        asked.append(request)
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        given: ElicitationAnswer = answer
        return given

    return asked, says


async def configured(folder: Path, more: str = "") -> dict[str, Any]:
    """Return the options of a session whose home knows the server."""
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    config = stdio_config(more='protocol = "stateless"', program=SERVER) + more
    (home / "config.toml").write_text(config)
    await look_once(servers_of(home, parse_config(config)))
    return {"agent_home": home, "project": project}


def events(session: DirectSession, kind: str) -> list[dict[str, Any]]:
    lines = (session.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [one["data"] for one in map(json.loads, lines) if one["type"].endswith(f".{kind}") or one["type"] == kind]


@pytest.mark.spec("MCP-01.l")
async def test_what_a_server_asks_goes_to_the_callback_for_it_and_permissions_to_the_other(tmp_path: Path) -> None:
    asked, answers = saying(ElicitationAnswer("accept", ORDER))
    options = await configured(tmp_path)

    async with open_tools(permission_callback=allows, elicitation_callback=answers, **options) as session:
        ordered = await session.call("mcp.t.order", tool_call_id="call_7")
        run_id = session.run_id

    assert text_of(ordered) == "accept colour='blue' size=7"
    (request,) = asked
    assert (request.server, request.message, request.url) == ("t", "Which colour and size?", "")
    assert request.schema is not None
    properties: Any = request.schema["properties"]
    assert {name: one["type"] for name, one in properties.items()} == {"colour": "string", "size": "integer"}
    assert request.schema["required"] == ["colour", "size"]
    assert (request.identity.run_id, request.tool_call_id) == (run_id, "call_7")


@pytest.mark.spec("MCP-01.l")
async def test_every_other_answer_of_the_callback_and_its_failure_declines(tmp_path: Path) -> None:
    asked, says = saying(
        ElicitationAnswer("decline", reason="no"),
        ElicitationAnswer("cancel"),
        ElicitationAnswer("accept", {"colour": "b" * 3_000, "size": 7}),
        RuntimeError("broken"),
        "yes",
        ElicitationAnswer("accept", {"colour": "blue"}),
    )

    async with open_tools(
        permission_callback=allows, elicitation_callback=says, **await configured(tmp_path)
    ) as session:
        heard = [text_of(await session.call("mcp.t.order")) for _ in range(6)]

    assert heard == ["decline None", "cancel None", *["decline None"] * 4]
    assert [one.problem for one in asked[5:]] == ["", "size is missing", "size is missing"]
    assert len(asked) == 8


@pytest.mark.spec("MCP-01.l", "MCP-01.d")
async def test_without_the_callback_the_question_goes_to_the_one_for_permissions(tmp_path: Path) -> None:
    async def says(request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(Choice.ALLOW_ONCE, "colour=green size=2" if request.takes_words else "")

    async with open_tools(permission_callback=says, **await configured(tmp_path)) as session:
        ordered = await session.call("mcp.t.order")

    assert text_of(ordered) == "accept colour='green' size=2"


@pytest.mark.spec("MCP-01.l", "PER-14")
async def test_with_that_callback_alone_nobody_is_asked_for_permission(tmp_path: Path) -> None:
    asked, answers = saying(ElicitationAnswer("accept", ORDER))

    async with open_tools(elicitation_callback=answers, **await configured(tmp_path)) as session:
        denied = await session.call("mcp.t.order")

    assert error_of(denied).type == "permission_no_callback"
    assert "none for permissions" in error_of(denied).message
    assert asked == []


def program(folder: Path, stage: str, body: str) -> str:
    """Write a hook and return its section of the configuration."""
    script = folder / f"{stage}.py"
    script.write_text("import json, sys\ntold = json.load(sys.stdin)\n" + body, encoding="utf-8")
    return f'\n[[hooks.{stage}]]\nname = "{stage}"\ntools = "mcp.t.*"\ncommand = ["{sys.executable}", "{script}"]\n'


ANSWERS = 'print(json.dumps({"action": "accept", "content": {"colour": "blue", "size": 7}}))\n'
LARGER = """
assert told["answer"]["action"] == "accept", told
content = told["answer"]["content"]
print(json.dumps({"content": {**content, "size": content["size"] + 1}, "reason": told["stage"]}))
"""


@pytest.mark.spec("MCP-01.m", "EXE-13.a", "EXE-13.e")
async def test_programs_of_the_users_configuration_answer_and_replace(tmp_path: Path) -> None:
    hooks = program(tmp_path, "elicitation", ANSWERS) + program(tmp_path, "elicitation_result", LARGER)

    async with open_tools(permission_callback=allows, **await configured(tmp_path, hooks)) as session:
        ordered = await session.call("mcp.t.order")
        runs = events(session, "hook_run")

    assert text_of(ordered) == "accept colour='blue' size=8"
    assert [(one["stage"], one["outcome"], one["reason"]) for one in runs] == [
        ("elicitation", "accept", ""),
        ("elicitation_result", "replaced", "elicitation_result"),
    ]
    assert runs[1]["content_diff"] == {"size": [7, 8]}


@pytest.mark.spec("MCP-01.m", "PER-02")
async def test_a_deny_rule_refuses_what_a_hook_answers(tmp_path: Path) -> None:
    rule = '\n[[permission.rules]]\neffect = "deny"\ntools = "mcp.t.elicitation/*"\n'
    hooks = program(tmp_path, "elicitation", ANSWERS)

    async with open_tools(permission_callback=allows, **await configured(tmp_path, hooks + rule)) as session:
        ordered = await session.call("mcp.t.order")

    assert text_of(ordered) == "decline None"
