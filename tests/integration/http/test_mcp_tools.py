"""Soong's MCP tools over HTTP with the official client: submit, follow, read; bounded, and clear when refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from soong.shared.permissions.access.token import Right
from soong.shared.storage.artifacts import FolderArtifacts
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.mcp_clients import WIRES, done, mcp_client, refused, text_of
from tests.integration.http.scene import ADA, BOB, HttpHarness

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("MCP-02")]

PLAN = {
    "title": "Two notes",
    "steps": [{"id": "a", "script": "builtin.echo"}, {"id": "b", "depends_on": ["a"], "script": "builtin.echo"}],
}
YAML = "title: One note\nsteps:\n  - {id: only, script: builtin.echo}\n"


@pytest.mark.spec("MCP-02.a", "MCP-02.b")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_plan_is_checked_submitted_found_and_steered(scene: HttpHarness, tmp_path: Path, wire: str) -> None:
    token = await scene.token(ADA, (Right.RUN,))
    async with mcp_client(scene, token, wire) as client:
        checked = await done(client, "validate_plan", plan=YAML)
        submitted = await done(client, "submit_plan", plan=PLAN, project=str(tmp_path), key="once")
        again = await done(client, "submit_plan", plan=PLAN, project=str(tmp_path), key="once")
        task = submitted["task"]["id"]
        state = await done(client, "show_task", task=task, limit=1)
        rest = await done(client, "show_task", task=task, cursor=state["next"])
        paused = await done(client, "pause_task", task=task, reason="lunch")
        waited = await done(client, "wait_for_task", task=task, seconds=5)
        resumed = await done(client, "resume_task", task=task)
        cancelled = await done(client, "cancel_task", task=task)
        tasks = await done(client, "list_tasks", limit=1)
        resource = await client.read_resource(f"soong://tasks/{task}")

    assert checked["steps"] == [{"id": "only", "kind": "agent", "title": "only", "depends_on": []}]
    session = submitted["session"]
    assert (session["approval_mode"], session["project"]) == ("inbox", str(tmp_path))
    assert again["task"]["id"] == task
    assert [step["id"] for step in (*state["steps"], *rest["steps"])] == ["a", "b"]
    assert (paused["status"], resumed["status"], cancelled["status"]) == ("paused", "running", "cancelled")
    assert (waited["is_over"], waited["reason"], "resume_task" in waited["hint"]) == (True, "lunch", True)
    assert tasks["items"][0]["id"] == task
    assert task in str(resource.contents[0])


@pytest.mark.spec("MCP-02.b")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_is_read_by_pages_and_an_artifact_by_its_digest(scene: HttpHarness, wire: str) -> None:
    claim = await scene.run_with(30)
    run = claim.identity.run_id
    assert isinstance(scene.api.artifacts, FolderArtifacts)
    kept = await scene.api.artifacts.put("Grüße ".encode() * 5_000, "text/plain", "long.txt")
    async with mcp_client(scene, await scene.token(BOB, (Right.READ,)), wire) as client:
        first = await done(client, "read_run", run=run, view="events", limit=20)
        second = await done(client, "read_run", run=run, view="events", limit=50, after=int(first["next"]))
        artifact = await done(client, "read_artifact", digest=kept.digest, limit=19_999)
        end = await done(client, "read_artifact", digest=kept.digest, offset=artifact["next_offset"])
        last = await done(client, "read_artifact", digest=kept.digest, offset=end["next_offset"])
        runs = await done(client, "list_runs", limit=100)
        workers, usage = await done(client, "list_workers"), await done(client, "show_usage", by="model")
        transcript = await done(client, "read_run", run=run)

    numbers = [int(one["id"]) for one in (*first["items"], *second["items"])]
    assert numbers == list(range(1, len(numbers) + 1))
    assert second["next"] is None
    assert artifact["text"] + end["text"] + last["text"] == "Grüße " * 5_000
    assert run in [one["id"] for one in runs["items"]]
    assert workers["workers"] == [] or workers["workers"][0]["slots"] > 0
    assert (usage["by"], usage["left_out"]) == ("model", 0)
    assert transcript["status"] == "running"


@pytest.mark.spec("MCP-02.e")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_wait_ends_with_a_change_and_never_outlasts_its_seconds(
    scene: HttpHarness, tmp_path: Path, wire: str
) -> None:
    """Clients cut calls at 60 s, whatever progress they hear of (anthropics/claude-code#58687, #22542)."""
    loop = asyncio.get_running_loop()
    async with mcp_client(scene, await scene.token(ADA, (Right.RUN,)), wire) as client:
        task = (await done(client, "submit_plan", plan=PLAN, project=str(tmp_path)))["task"]["id"]
        began_s = loop.time()
        first = await done(client, "wait_for_task", task=task, seconds=1)
        took_s = loop.time() - began_s
        waiting = asyncio.ensure_future(
            client.call_tool("wait_for_task", {"task": task, "seconds": 45, "after": first["state"]})
        )
        await done(client, "cancel_task", task=task, reason="enough")
        ended = (await asyncio.wait_for(waiting, 20)).structured_content
        schema = next(one for one in (await client.list_tools()).tools if one.name == "wait_for_task").input_schema

    assert (first["status"], first["is_over"]) == ("running", False)
    assert 0.9 <= took_s < 10
    assert ended is not None
    assert (ended["status"], ended["is_over"], ended["reason"]) == ("cancelled", True, "enough")
    assert schema["properties"]["seconds"]["maximum"] == 45


@pytest.mark.spec("OPS-12.a")
@pytest.mark.parametrize(
    ("rights", "hidden"),
    [
        ((Right.READ,), {"submit_plan", "cancel_task", "answer_approval"}),
        ((Right.RUN,), {"answer_approval"}),
        ((Right.READ, Right.APPROVE), {"submit_plan", "submit_goal", "retry_task"}),
    ],
    ids=["read", "run", "approve"],
)
async def test_a_caller_sees_and_runs_only_tools_that_it_has_the_right_for(
    scene: HttpHarness, rights: tuple[Right, ...], hidden: set[str]
) -> None:
    async with mcp_client(scene, await scene.token(BOB, rights)) as client:
        shown = {tool.name for tool in (await client.list_tools()).tools}
        said = [await refused(client, name) for name in sorted(hidden)]

    assert {"wait_for_task", "list_approvals", "read_step"} <= shown
    assert not hidden & shown
    assert all("needs the right" in text for text in said)


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("show_task", {"task": "task_" + "0" * 32}, "there is no task"),
    ("show_task", {"task": "../../v1/sessions"}, "is not an id"),
    ("show_task", {"task": "task_1/result?x="}, "is not an id"),
    ("show_task", {"task": "t" * 100_000}, "at most 80 characters"),
    ("show_task", {"task": "task_1\x00"}, "is not an id"),
    ("show_task", {}, "Field required"),
    ("show_task", {"task": "task_1", "tsak": 1}, "did you mean 'task'?"),
    ("wait_for_task", {"task": "task_1", "seconds": 46}, "less than or equal to 45"),
    ("wait_for_task", {"task": "task_1", "seconds": "soon"}, "valid integer"),
    ("read_run", {"run": "run_1", "view": "secrets"}, "'transcript' or 'events'"),
    ("read_artifact", {"digest": "../../etc/passwd"}, "should match pattern"),
    ("read_artifact", {"digest": "0" * 64}, "there is no artifact"),
    ("submit_plan", {}, "pass either `plan`"),
    ("submit_plan", {"plan": PLAN}, "`project` is missing"),
    ("submit_plan", {"plan": PLAN, "project": "relative"}, "is not an absolute path"),
    ("submit_plan", {"plan_path": "/etc/passwd", "project": "/"}, "does not read plan files"),
    ("submit_plan", {"plan": "steps: [", "project": "/"}, "invalid_plan"),
    ("submit_plan", {"plan": PLAN, "project": "/", "approvals": "prompt"}, "should match pattern"),
    ("submit_plan", {"plan": PLAN, "project": "/", "allow": ["*"]}, "write a rule as `tool:scope`"),
    ("submit_goal", {"goal": "x", "project": "/", "model": "nope"}, "nope"),
    ("answer_approval", {"approval": "req_1", "choice": "allow_once"}, "`input_digest` is missing"),
    ("answer_approval", {"approval": "req_1", "choice": "yes", "input_digest": "0" * 64}, "'allow_once'"),
    (
        "answer_approval",
        {"approval": "req_1", "choice": "deny", "input_digest": "0" * 64},
        "there is no permission request",
    ),
    ("list_approvals", {"limit": 10_000}, "less than or equal to 50"),
    ("drop_tables", {}, "there is no tool 'drop_tables'"),
]


@pytest.mark.parametrize("wire", WIRES)
async def test_every_bad_argument_is_refused_with_what_to_do(scene: HttpHarness, wire: str) -> None:
    said: list[tuple[str, str, str]] = []
    async with mcp_client(scene, await scene.token(ADA), wire) as client:
        for tool, arguments, expected in HOSTILE:
            result = await client.call_tool(tool, arguments)
            said.append((tool, expected, text_of(result) if result.is_error else "accepted"))

    assert [one for one in said if one[1] not in one[2]] == []
    assert [one for one in said if "Traceback" in one[2] or "pydantic.dev" in one[2] or len(one[2]) > 4_000] == []


async def test_a_goal_is_given_to_an_agent(scene: HttpHarness, tmp_path: Path) -> None:
    async with mcp_client(scene, await scene.token(ADA, (Right.RUN,))) as client:
        given = await done(
            client, "submit_goal", goal="Find the bug.", project=str(tmp_path), model="openai-chat:gpt-5", budget="1usd"
        )
        result = await done(client, "task_result", task=given["task"]["id"])

    assert (result["status"], result["exit_code"], result["answer"]) == ("running", 130, None)
    assert given["task"]["title"] == "Find the bug."
