import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmock.scenarios import StreamFault, ToolCall
from llmock.testing import LLMockServer

from soong import AnswerDelta, Choice, PermissionDecision, PermissionRequest, Soong, TaskStatus
from soong.shared.core.errors import UsageError
from tests.system.cli_scene import permitting
from tests.system.test_cli_ask import PLANNER, WORKER, planner, worker
from tests.wires.wire import Wires


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="soong-sdk-") as path:
        yield Path(path).resolve()


@pytest.mark.spec("DIS-01.e", "PER-01.a", "PER-16")
async def test_the_question_of_a_dispatched_worker_reaches_the_programs_callback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PermissionRequest] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(Choice.ALLOW_ONCE)

    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(permitting(WORKER))
    write = {"instructions": "Write it down.", "model": WORKER, "allowed_tools": ["code.write_file"]}
    with LLMockServer() as server:
        wires = Wires(server)
        for name, value in wires.environment.items():
            monkeypatch.setenv(name, value)
        wires.will(
            planner(ToolCall("agent__dispatch_worker", write)),
            worker(ToolCall("code__write_file", {"path": str(folder / "notes.txt"), "content": "done"})),
            worker(text="written"),
            planner(text="It is written down."),
        )
        async with Soong.embedded(agent_home=folder / "home", workers=1) as soong:
            ended = await soong.ask("Write it down.", model=PLANNER, permission_callback=allow, project=folder)

    assert (ended.status, ended.answer, ended.exit_code) == (TaskStatus.COMPLETED, "It is written down.", 0)
    assert (folder / "notes.txt").read_text() == "done"
    (request,) = asked
    (step,) = ended.steps
    assert (request.tool, request.identity.run_id, request.identity.role.value) == (
        "code.write_file",
        step.run,
        "worker",
    )
    assert request.identity.parent_run_id not in ("", request.identity.run_id)


@pytest.mark.spec("DIS-01")
async def test_a_goal_without_a_model_writes_nothing(folder: Path) -> None:
    async with Soong.embedded(agent_home=folder / "home", workers=1) as soong:
        with pytest.raises(UsageError, match="has no model"):
            await soong.ask("Do it.", project=folder)


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
