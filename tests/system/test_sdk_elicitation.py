"""What an MCP server asks, from a worker to the callback of the program that waits for the task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from soong import (
    Choice,
    ElicitationAnswer,
    ElicitationRequest,
    PermissionDecision,
    PermissionRequest,
    Soong,
    TaskResult,
)
from soong.shared.core.jsontext import Json
from tests.integration.mcp.scene import stdio_config
from tests.scripted import call, calls
from tests.system.deployment import ON_SQLITE, Deployment

SERVER = Path(__file__).parents[1] / "integration" / "mcp" / "asking_server.py"
SHARE: Mapping[str, Any] = {"key": "x", "pages": ["https://sign-in.example.org/a"]}


def plan(*made: Any) -> Mapping[str, Json]:
    step = {"id": "it", "title": "Order it", "allowed_tools": ["mcp.t.*"], **calls(*made)}
    return {"title": "Ask", "steps": [step]}


async def allows(request: PermissionRequest) -> PermissionDecision:
    assert not request.takes_words
    return PermissionDecision(Choice.ALLOW_ONCE)


def results(outcome: TaskResult) -> list[Any]:
    output: Any = outcome.steps[0].output
    return list(output["results"])


async def started(service: Deployment) -> dict[str, Any]:
    """Start a worker that knows the server; return what a program connects with."""
    home = service.settings.home
    (home / "config.toml").write_text(stdio_config(more='protocol = "stateless"', program=SERVER))
    await service.start_workers(1)
    return {"database_url": service.database_url, "redis_url": service.redis_url, "agent_home": home}


@pytest.mark.spec("MCP-01.l", "MCP-01.k", "PER-13.g", "PER-12.b")
@ON_SQLITE
async def test_the_question_of_a_workers_call_reaches_the_programs_callback_and_its_answer_is_signed(
    service: Deployment, tmp_path: Path
) -> None:
    asked: list[ElicitationRequest] = []

    async def answers(request: ElicitationRequest) -> ElicitationAnswer:
        asked.append(request)
        return ElicitationAnswer("accept", None if request.url else {"colour": "blue", "size": 7})

    async with Soong.connect(**await started(service)) as soong:
        outcome = await soong.run(
            plan(call("mcp.t.order"), call("mcp.t.share", **SHARE)),
            permission_callback=allows,
            elicitation_callback=answers,
            project=tmp_path,
        )

    assert [one["value"]["result"] for one in results(outcome)] == ["accept colour='blue' size=7", "shared at call 2"]
    form, page = asked
    assert (form.server, form.message, page.host) == ("t", "Which colour and size?", "sign-in.example.org")
    (step,) = outcome.steps
    identity = form.identity
    assert (identity.task_id, identity.run_id, identity.step_title) == (outcome.id, step.run, "Order it")
    assert identity.parent_run_id not in ("", identity.run_id)
    closed = await service.store.consent.questions(session_id=identity.session_id, include_closed=True)
    (question,) = [one for one in closed if one.request.id == form.id]
    assert question.decision is not None
    assert (question.decision.author, question.decision.reason) == ("person", '{"colour":"blue","size":7}')
    assert question.decision.signature
