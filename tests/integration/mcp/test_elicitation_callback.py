"""What a real server asks, in a session of a program: its two callbacks, its rules, its hooks as programs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

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
from tests.integration.mcp.scene import stdio_config
from tests.unit.tools.parts import text_of

SERVER = Path(__file__).with_name("asking_server.py")
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


def configured(folder: Path, more: str = "") -> dict[str, Any]:
    """Return the options of a session whose home knows the server."""
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    (home / "config.toml").write_text(stdio_config(more='protocol = "stateless"', program=SERVER) + more)
    return {"agent_home": home, "project": project}


def events(session: DirectSession, kind: str) -> list[dict[str, Any]]:
    lines = (session.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [one["data"] for one in map(json.loads, lines) if one["type"].endswith(f".{kind}") or one["type"] == kind]


@pytest.mark.spec("MCP-01.l")
async def test_what_a_server_asks_goes_to_the_callback_for_it_and_permissions_to_the_other(tmp_path: Path) -> None:
    asked, answers = saying(ElicitationAnswer("accept", ORDER))
    options = configured(tmp_path)

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

    async with open_tools(permission_callback=allows, elicitation_callback=says, **configured(tmp_path)) as session:
        heard = [text_of(await session.call("mcp.t.order")) for _ in range(6)]

    assert heard == ["decline None", "cancel None", *["decline None"] * 4]
    assert [one.problem for one in asked[5:]] == ["", "size is missing", "size is missing"]
    assert len(asked) == 8


@pytest.mark.spec("MCP-01.l", "MCP-01.d")
async def test_without_the_callback_the_question_goes_to_the_one_for_permissions(tmp_path: Path) -> None:
    async def says(request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(Choice.ALLOW_ONCE, "colour=green size=2" if request.takes_words else "")

    async with open_tools(permission_callback=says, **configured(tmp_path)) as session:
        ordered = await session.call("mcp.t.order")

    assert text_of(ordered) == "accept colour='green' size=2"


@pytest.mark.spec("MCP-01.l", "PER-14")
async def test_with_that_callback_alone_nobody_is_asked_for_permission(tmp_path: Path) -> None:
    asked, answers = saying(ElicitationAnswer("accept", ORDER))

    async with open_tools(elicitation_callback=answers, **configured(tmp_path)) as session:
        denied = await session.call("mcp.t.order")

    assert denied.error is not None
    assert denied.error.type == "permission_no_callback"
    assert "none for permissions" in denied.error.message
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

    async with open_tools(permission_callback=allows, **configured(tmp_path, hooks)) as session:
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

    async with open_tools(permission_callback=allows, **configured(tmp_path, hooks + rule)) as session:
        ordered = await session.call("mcp.t.order")

    assert text_of(ordered) == "decline None"
