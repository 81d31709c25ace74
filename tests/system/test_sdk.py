"""The service from a program: the public import, with a function in place of the terminal."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from soong import Choice, PermissionDecision, PermissionRequest, Soong, TaskStatus, UsageError, open_tools
from soong.orchestrator.schemas.task import TaskLimitSchema
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import Budget, session_scope
from tests.scripted import call, calls, error_of
from tests.system.deployment import ON_SQLITE, Deployment

APPROVE = Path(__file__).parents[2] / "examples" / "approve.yaml"
EXAMPLE: Mapping[str, Any] = {"functions": ("approve",), "import_path": str(APPROVE.parent)}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="soong-sdk-") as path:
        yield Path(path).resolve()


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
            await soong.resume(failed.id, limits={"turns": 9})
        await soong.resume(failed.id, limits={"max_turns": 9}, budget="5usd")
        ended = await soong.wait(failed.id)

    scope = session_scope(ended.session)
    budget = (await service.store.budgets.budgets([scope], day="2026-01-01"))[scope].budget
    assert failed.limits is not None
    assert ended.limits is not None
    assert (failed.status, failed.limits.max_turns) == (TaskStatus.FAILED, TaskLimitSchema(limit=1, used=1))
    assert (ended.status, ended.limits.max_turns) == (TaskStatus.COMPLETED, TaskLimitSchema(limit=9, used=3))
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
