"""The SDK against a real service: plans, goals, forms of its documents, elicitations of MCP servers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llmock.scenarios import StreamFault
from llmock.testing import LLMockServer

from soong import (
    AnswerDelta,
    Choice,
    ElicitationAnswer,
    ElicitationRequest,
    PermissionDecision,
    PermissionRequest,
    Soong,
    TaskResult,
    TaskStatus,
    UsageError,
    open_tools,
)
from soong.orchestrator.schemas.task import TaskLimitSchema
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import Budget, session_scope
from tests.integration.mcp.scene import stdio_config
from tests.scripted import call, calls, error_of
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.test_cli_ask import PLANNER, planner
from tests.wires.wire import Wires

APPROVE = Path(__file__).parents[2] / "examples" / "approve.yaml"

EXAMPLE: Mapping[str, Any] = {"functions": ("approve",), "import_path": str(APPROVE.parent)}


@pytest.mark.spec("OPS-04.b", "OPS-01", "PER-01.a", "PER-13.f")
async def test_an_embedded_service_asks_the_programs_own_callback(folder: Path) -> None:
    asked: list[PermissionRequest] = []

    async def allow_writes(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(Choice.ALLOW_ONCE)

    async with Soong.embedded(agent_home=folder / "home", workers=1, **EXAMPLE) as soong:
        outcome = await soong.run(
            APPROVE, {"folder": str(folder / "notes")}, permission_callback=allow_writes, project=folder
        )

    assert outcome.status is TaskStatus.COMPLETED
    assert outcome.denials == []
    assert [request.tool for request in asked] == ["code.write_file"] * 2
    assert sorted(path.name for path in (folder / "notes").iterdir()) == ["left.txt", "right.txt"]


@pytest.mark.spec("DIS-07.e")
@ON_SQLITE
async def test_a_program_raises_what_a_task_may_use_and_continues_it(service: Deployment) -> None:
    await service.start_workers(1)
    agent: Mapping[str, Json] = {"instructions": "x", **calls(call("code.list_dir", path="."), output="seen")}
    plan: Mapping[str, Json] = {"title": "t", "limits": {"max_turns": 1}, "steps": [{"id": "look", **agent}]}

    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        failed = await soong.run(plan, model="script")
        with pytest.raises(UsageError, match="did you mean 'max_turns'"):
            await soong.task(failed.id).resume(limits={"turns": 9})
        await soong.task(failed.id).resume(limits={"max_turns": 9}, budget="5usd")
        ended = await soong.task(failed.id).wait()

    scope = session_scope(ended.session)
    budget = (await service.store.budgets.budgets([scope], day="2026-01-01"))[scope].budget
    assert failed.limits is not None
    assert ended.limits is not None
    assert (failed.status, failed.limits.max_turns) == (TaskStatus.FAILED, TaskLimitSchema(limit=1, used=1))
    assert (ended.status, ended.limits.max_turns) == (TaskStatus.COMPLETED, TaskLimitSchema(limit=9, used=2))
    assert budget == Budget(microusd=5_000_000)


RELATIVE: Mapping[str, Json] = {
    "title": "write beside",
    "steps": [
        {
            "id": "write",
            "instructions": "write a file",
            "allowed_tools": ["code.write_file"],
            **calls(call("code.write_file", path="f.txt", content="x")),
        }
    ],
}


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("where", ["elsewhere", "project", "project/inside"])
@ON_SQLITE
async def test_relative_paths_lead_to_the_same_file_by_a_run_and_by_a_call(
    service: Deployment, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    project, here = folder / "project", folder / where
    (project / "inside").mkdir(parents=True)
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    await service.start_workers(1)
    home, allow = service.settings.home, [f"code.write_file:{folder}"]

    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        outcome = await soong.run(RELATIVE, project=project, allow=allow)
    by_run = _taken_away(folder)
    async with open_tools(project=project, allow=allow, agent_home=home) as tools:
        await tools.call("code.write_file", {"path": "f.txt", "content": "x"})
    by_call = _taken_away(folder)

    assert error_of(outcome.outputs["write"]) == ""
    assert by_run == by_call == ["project/f.txt" if where == "elsewhere" else f"{where}/f.txt"]


def _taken_away(folder: Path) -> list[str]:
    """Remove every ``f.txt`` and return where they were."""
    found = list(folder.rglob("f.txt"))
    for path in found:
        path.unlink()
    return [str(path.relative_to(folder)) for path in found]


async def test_a_program_gets_an_answer_while_it_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[AnswerDelta, bool]] = []
    with LLMockServer() as server:
        wires = Wires(server)
        for name, value in wires.environment.items():
            monkeypatch.setenv(name, value)
        wires.will(
            StreamFault("stall", after_chunks=6, stall_seconds=8.0), planner(text="It is all as it was before, says I.")
        )

        def take(delta: AnswerDelta) -> None:
            seen.append((delta, bool(server.state.journal.records())))

        async with Soong.embedded(agent_home=folder / "home", workers=1) as soong:
            ended = await soong.ask("Look.", model=PLANNER, project=folder, on_answer=take)

    assert ended.answer == "It is all as it was before, says I."
    early = [delta for delta, has_ended in seen if not has_ended]
    assert any(delta.text.startswith("It is all") for delta in early)
    assert not any("says I" in delta.text for delta in early)


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
