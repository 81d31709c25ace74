import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient, Response

from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.access.token import Right
from soong.shared.storage.sql.store import SqlTaskStore
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of
from tests.model.builders import make_task, open_worker

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04")]

PLAN = {
    "title": "Two steps <b>",
    "inputs": {"name": {"type": "string"}},
    "steps": [
        {"id": "first", "inputs": {"name": "${inputs.name}"}, "script": "builtin.echo"},
        {"id": "second", "depends_on": ["first"], "script": "builtin.echo"},
    ],
}
SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TEXT = "title: From a file\nsteps:\n  - id: only\n    script: builtin.echo\n"


async def submitted(scene: HttpHarness, tmp_path: Path, **more: Any) -> dict[str, Any]:
    body = {"plan": PLAN, "inputs": {"name": "Ada"}, "project": str(tmp_path), **more}
    response = await scene.caller.post("/v1/tasks", json=body)
    assert response.status_code == 201, response.text
    assert response.headers["location"] == f"/v1/tasks/{response.json()['task']['id']}"
    told: dict[str, Any] = response.json()
    return told


async def test_a_plan_becomes_a_task_of_the_callers(scene: HttpHarness, tmp_path: Path) -> None:
    told = await submitted(scene, tmp_path)

    session = await scene.bench.store.sessions.session(told["session"]["id"])
    shown = (await scene.caller.get(f"/v1/tasks/{told['task']['id']}")).json()
    assert (session.principal, session.project) == (ADA, str(tmp_path))
    assert session.approval_mode is ApprovalMode.INBOX
    assert told["task"]["step_counts"] == {"ready": 1, "pending": 1}
    assert shown["inputs"] == {"name": "Ada"}
    assert [(step["id"], step["status"]) for step in shown["steps"]] == [("first", "ready"), ("second", "pending")]
    assert shown["steps"][1]["depends_on"] == ["first"]


@pytest.mark.spec("DIS-07")
async def test_a_plan_brings_its_limits_and_the_result_tells_what_is_used(scene: HttpHarness, tmp_path: Path) -> None:
    told = await submitted(scene, tmp_path, plan={**PLAN, "limits": {"max_turns": 3, "cost_usd": 0.5}})
    without = await submitted(scene, tmp_path)
    wrong = await scene.caller.post(
        "/v1/tasks", json={"plan": {**PLAN, "limits": {"turns": 3}}, "project": str(tmp_path), "inputs": {"name": "A"}}
    )

    results = [await scene.caller.get(f"/v1/tasks/{one['task']['id']}/result") for one in (told, without)]

    limits = {"max_turns": {"limit": 3, "used": 0}, "tokens": None, "cost_usd": {"limit": 0.5, "used": 0}}
    assert [one.json()["limits"] for one in results] == [{**limits, "wall_s": None}, None]
    assert [(error["place"], error["hint"]) for error in wrong.json()["errors"]] == [
        ("plan limits.turns", "did you mean 'max_turns'?")
    ]


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize(
    ("header", "stored"),
    [(SPAN, SPAN), ("00-4bf92f3577b34da6a3ce929d0e0e4736", ""), ("", "")],
    ids=["well formed", "malformed", "none"],
)
async def test_the_trace_of_a_task_hangs_under_the_callers_span(
    scene: HttpHarness, tmp_path: Path, header: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")  # the server's own
    body = {"plan": PLAN, "inputs": {"name": "Ada"}, "project": str(tmp_path)}

    response = await scene.caller.post("/v1/tasks", json=body, headers={"traceparent": header})

    task = await scene.bench.store.tasks.task(response.json()["task"]["id"])
    assert task.trace_parent == stored


async def test_a_plan_may_be_the_text_of_a_file(scene: HttpHarness, tmp_path: Path) -> None:
    told = await submitted(scene, tmp_path, plan=TEXT, inputs={}, approval_mode="deny")

    assert told["task"]["title"] == "From a file"
    assert told["session"]["approval_mode"] == "deny"


async def test_a_submission_said_again_with_its_key_is_one_task(scene: HttpHarness, tmp_path: Path) -> None:
    body = {"plan": PLAN, "inputs": {"name": "Ada"}, "project": str(tmp_path)}

    def submit(caller: AsyncClient, key: str = "k-1", **more: Any) -> Awaitable[Response]:
        return caller.post("/v1/tasks", json={**body, **more}, headers={"Idempotency-Key": key})

    at_once = await asyncio.gather(*(submit(scene.caller) for _ in range(3)))
    again = await submit(scene.caller)
    other = await submit(scene.caller, inputs={"name": "Bob"})
    others = await submit(await scene.someone(BOB, Right.RUN))
    wrong = await submit(scene.caller, key="two words")

    (task_id,) = {one.json()["task"]["id"] for one in at_once}
    assert {one.status_code for one in at_once} <= {200, 201}
    assert (again.status_code, again.json()["task"]["id"]) == (200, task_id)
    assert again.headers["location"] == f"/v1/tasks/{task_id}"
    assert (other.status_code, code_of(other)) == (422, "idempotency_key_reused")
    assert (others.status_code, others.json()["session"]["principal"]) == (201, BOB)
    assert (code_of(wrong), wrong.json()["errors"][0]["place"]) == ("invalid_input", "header.Idempotency-Key")
    assert len(await scene.bench.store.tasks.list_tasks()) == 2


@pytest.mark.spec("DIS-13")
@pytest.mark.parametrize("name", ["os", "soong.worker.main", "../research"])
async def test_a_plan_over_http_loads_no_module(scene: HttpHarness, tmp_path: Path, name: str) -> None:
    plan = {"title": "x", "modules": [name], "steps": [{"id": "a", "instructions": "x"}]}

    checked = await scene.caller.post("/v1/tasks/validate", json={"plan": plan})
    sent = await scene.caller.post("/v1/tasks", json={"plan": plan, "project": str(tmp_path)})

    assert code_of(checked) == code_of(sent) == "invalid_plan"
    assert [error["place"] for error in sent.json()["errors"]] == ["plan modules"]
    assert await scene.bench.store.tasks.list_tasks() == []


@pytest.fixture
def no_reading_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each read of all steps of a task."""

    def refuse(*_given: object) -> None:
        raise AssertionError("all steps are read at once")

    for name in ("steps", "task_with_steps", "step_states"):
        monkeypatch.setattr(SqlTaskStore, name, refuse)


async def large(scene: HttpHarness, count: int) -> str:
    task = make_task(scene.bench.session_id, *(f"s{number}" for number in range(count)))
    await scene.bench.store.tasks.create_task(task)
    return task.id


async def test_a_large_task_is_shown_page_by_page(scene: HttpHarness, no_reading_of_all: None) -> None:
    url = f"/v1/tasks/{await large(scene, 450)}"

    shown: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        shown.append((await scene.caller.get(url, params={"cursor": cursor})).json())
        cursor = shown[-1]["next"]

    assert [len(page["steps"]) for page in shown] == [200, 200, 50]
    assert [step["id"] for page in shown for step in page["steps"]] == [f"s{number}" for number in range(450)]
    assert shown[0]["step_counts"] == {"ready": 450}


async def test_of_a_large_task_progress_and_picture_are_bounded(scene: HttpHarness, no_reading_of_all: None) -> None:
    task_id = await large(scene, 1_300)
    await scene.bench.claim_for(await open_worker(scene.bench.store))

    progress = (await scene.caller.get(f"/v1/tasks/{task_id}/progress")).json()
    mermaid = await scene.caller.get(f"/v1/tasks/{task_id}/graph")

    assert progress["step_counts"] == {"ready": 1_299, "running": 1}
    assert [one["id"] for one in progress["running"]] == ["s0"]
    assert (mermaid.text.count("\n    s"), "300 more steps, not drawn" in mermaid.text) == (1_001, True)
    assert len(mermaid.content) < 100_000


async def test_a_task_is_drawn_as_it_is(scene: HttpHarness, tmp_path: Path) -> None:
    url = f"/v1/tasks/{(await submitted(scene, tmp_path))['task']['id']}/graph"

    mermaid = await scene.caller.get(url)
    svg = await scene.caller.get(url, params={"format": "svg"})
    other = await scene.caller.get(url, params={"format": "png"})

    assert mermaid.text.startswith("flowchart")
    assert svg.headers["content-type"].startswith("image/svg+xml")
    assert "<b>" not in svg.text
    assert "sandbox" in svg.headers["content-security-policy"]
    assert code_of(other) == "invalid_input"


async def test_projects_may_be_confined(open_http: OpenScene, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in" / "deep", tmp_path / "out"
    inside.mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "in" / "link").symlink_to(outside)
    async with open_http(http_projects=(str(tmp_path / "in"),)) as scene:

        async def status(project: Path) -> int:
            return (await scene.caller.post("/v1/tasks", json={"plan": TEXT, "project": str(project)})).status_code

        assert await status(inside) == 201
        assert await status(outside) == 403
        assert await status(tmp_path / "in" / "link") == 403
        assert await status(inside / ".." / ".." / "out") == 403


async def test_a_paused_task_goes_on_and_a_cancelled_one_is_cancelled_once_and_tried_again(
    scene: HttpHarness, tmp_path: Path
) -> None:
    task_id = (await submitted(scene, tmp_path))["task"]["id"]
    await scene.caller.post(f"/v1/tasks/{task_id}/pause")
    resumed = await scene.caller.post(f"/v1/tasks/{task_id}/resume")
    _, again = [await scene.caller.post(f"/v1/tasks/{task_id}/cancel") for _ in range(2)]
    retried = await scene.caller.post(f"/v1/tasks/{task_id}/retry", json={"from": "first"})
    unknown = await scene.caller.post(f"/v1/tasks/{task_id}/retry", json={"from": "nothing"})

    assert resumed.json()["status"] == retried.json()["status"] == "running"
    assert (code_of(again), code_of(unknown)) == ("conflict", "not_found")


@pytest.mark.spec("DAG-03")
async def test_pull_workers_are_dispatched_for_a_task_that_goes_on(scene: HttpHarness, tmp_path: Path) -> None:
    plan = {"title": "pulled", "steps": [{"id": "a", "claim": "pull", "instructions": "x"}]}
    task_id = (await submitted(scene, tmp_path, plan=plan, inputs={}))["task"]["id"]
    path = f"/v1/tasks/{task_id}/dispatch"

    done = await scene.caller.post(path, json={"count": 2, "model": "script", "script": "builtin.echo"})
    too_many = await scene.caller.post(path, json={"count": 100_000})
    steps = await scene.bench.store.tasks.steps(task_id)
    await scene.caller.post(f"/v1/tasks/{task_id}/cancel")
    late = await scene.caller.post(path, json={})

    assert done.status_code == 200, done.text
    assert [step.step_id for step in steps if step.is_pull_worker] == ["pull-worker-1", "pull-worker-2"]
    assert code_of(late) == "conflict"
    assert too_many.json()["errors"][0]["place"] == "body.count"


async def test_a_session_is_closed_once_and_leaves_the_list(scene: HttpHarness, tmp_path: Path) -> None:
    session_id = (await submitted(scene, tmp_path))["session"]["id"]

    closed = [await scene.caller.post(f"/v1/sessions/{session_id}/close") for _ in range(2)]
    open_ = (await scene.caller.get("/v1/sessions")).json()["items"]
    every = (await scene.caller.get("/v1/sessions", params={"closed": "true"})).json()["items"]

    assert [response.json()["is_closed"] for response in closed] == [True, True]
    assert session_id not in {item["id"] for item in open_}
    assert session_id in {item["id"] for item in every}


@pytest.mark.parametrize("kind", ["sessions", "tasks", "runs"])
async def test_lists_are_read_page_by_page_from_the_newest_on(scene: HttpHarness, tmp_path: Path, kind: str) -> None:
    for _ in range(3):
        await submitted(scene, tmp_path)
    whole = (await scene.caller.get(f"/v1/{kind}", params={"limit": 200})).json()["items"]

    found, cursor = [], ""
    while True:
        page = (await scene.caller.get(f"/v1/{kind}", params={"limit": 2, "cursor": cursor})).json()
        found += page["items"]
        if not page["next"]:
            break
        cursor = page["next"]

    assert found == whole
    assert len(whole) >= 3


async def test_a_run_tells_its_lineage_its_tools_and_why(scene: HttpHarness, tmp_path: Path) -> None:
    told = await submitted(scene, tmp_path)
    task_id = told["task"]["id"]
    runs = (await scene.caller.get("/v1/runs", params={"task": task_id})).json()["items"]
    by_step = {run["step"]: run for run in runs}

    shown = (await scene.caller.get(f"/v1/runs/{by_step['first']['id']}")).json()

    assert set(by_step) == {"", "first", "second"}
    assert shown["parent_run"] == by_step[""]["id"]
    assert shown["role"] == "worker"
    assert "code.read_file" in shown["tools"]
    assert {one["tool"]: one["is_in"] for one in shown["surface"]}["code.write_file"] is False
    assert all(one["rule"] for one in shown["surface"])


async def test_the_service_tells_its_workers_and_figures_and_no_secret(scene: HttpHarness) -> None:
    await scene.run_with(1)

    workers = (await scene.caller.get("/v1/workers")).json()
    metrics = await scene.caller.get("/v1/metrics")

    assert workers["workers"][0]["used"] == 1
    assert set(workers) == set(WorkersSchema.model_fields)
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "soong_" in metrics.text
    assert str(scene.api.client.settings.database_url) not in metrics.text


@pytest.mark.spec("EXE-07.a", "EXE-07.g", "EXE-07.h")
async def test_a_run_is_aborted_or_one_call_alone_and_only_one_that_is_under_way(scene: HttpHarness) -> None:
    claim = await scene.run_with(1)
    store, run_id = scene.bench.store, claim.identity.run_id
    started = NewEvent(EventType.TOOL_STARTED, {"tool_call_id": "c1", "tool": "code.run_command"})
    await store.runs.append(run_id, claim.fence, events=[started], now_us=scene.bench.clock.now_us())

    refused = await scene.caller.post(f"/v1/runs/{run_id}/abort", json={"call": "c2"})
    body = {"call": "c1", "reason": "it hangs", "continue": True}
    aborted = await scene.caller.post(f"/v1/runs/{run_id}/abort", json=body)
    ended = await scene.caller.post(f"/v1/runs/{run_id}/abort", json={"reason": "enough"})

    worker_id = (await store.runs.run(run_id)).worker_id
    told = await store.claims.interrupts(worker_id)
    assert (refused.status_code, code_of(refused)) == (409, "conflict")
    assert "those that are under way: c1 (code.run_command)" in refused.json()["detail"]
    assert (aborted.status_code, aborted.json()["id"]) == (200, run_id)
    assert ended.status_code == 200
    found = {(each.kind, each.tool_call_id, each.reason) for each in told}
    assert found == {("abort", "c1", "it hangs"), ("abort", "", "enough")}
