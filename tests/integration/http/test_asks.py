"""Goals over HTTP: submitted once, refused with what to do, never allowed more than their submitter may allow."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from soong.shared.core.identity import Role
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.permissions.access.token import Right
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("DIS-01", "OPS-04")]

MODEL = "openai-chat:gpt-5"


@pytest_asyncio.fixture(loop_scope="module")
async def scene(open_http: OpenScene) -> AsyncIterator[HttpHarness]:
    async with open_http() as opened:
        yield opened


def body(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"goal": "Find the bug.", "model": MODEL, "project": str(tmp_path), **more}


async def test_a_goal_becomes_an_ask_of_the_callers(scene: HttpHarness, tmp_path: Path) -> None:
    response = await scene.caller.post("/v1/asks", json=body(tmp_path, agent="reviewer"))

    assert response.status_code == 201, response.text
    told = response.json()
    task = await scene.bench.store.tasks.task(told["task"]["id"])
    root = (await scene.bench.store.runs.run(task.root_run_id)).identity
    assert (task.kind, task.title, told["session"]["principal"]) == (TaskKind.ASK, "Find the bug.", ADA)
    assert (root.role, root.definition, root.model) == (Role.MAIN, "reviewer", MODEL)
    result = (await scene.caller.get(f"/v1/tasks/{task.id}/result")).json()
    assert (result["answer"], result["status"], result["exit_code"]) == (None, "running", 130)


async def test_a_goal_with_a_name_is_submitted_once(scene: HttpHarness, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "one-goal"}

    first = await scene.caller.post("/v1/asks", json=body(tmp_path), headers=key)
    again = await scene.caller.post("/v1/asks", json=body(tmp_path), headers=key)
    other = await scene.caller.post("/v1/asks", json=body(tmp_path, goal="Find another."), headers=key)

    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert again.json()["task"]["id"] == first.json()["task"]["id"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": ""}, "has no model; choose one with --model provider:name"),
        ({"goal": " \n"}, "the goal is empty"),
        ({"agent": "nobody"}, "nobody"),
        ({"project": "relative"}, "is not an absolute path"),
        ({"allow": ["nonsense"]}, "write a rule as `tool:scope`"),
    ],
)
async def test_a_goal_that_cannot_be_followed_is_refused(
    scene: HttpHarness, tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    response = await scene.caller.post("/v1/asks", json=body(tmp_path, **wrong))

    assert response.status_code in (400, 404, 422), response.text
    assert says in response.text


async def test_only_an_approver_allows_beforehand(scene: HttpHarness, tmp_path: Path) -> None:
    allowed = body(tmp_path, allow=[f"code.write_file:{tmp_path}"])

    runner = await scene.someone(BOB, Right.RUN)

    response = await runner.post("/v1/asks", json=allowed)

    assert (response.status_code, code_of(response)) == (403, "forbidden")
