"""Soong's MCP tools over HTTP with the official client: submit, follow, read, approve; bounded; clear when refused."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp_types import ElicitRequestParams, ElicitResult

from soong.shared.permissions.access.token import Right
from soong.shared.permissions.request import Choice
from soong.shared.sandbox.family import HAS_MARK
from soong.shared.storage.artifacts import FolderArtifacts
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.mcp_clients import WIRES, done, mcp_client, refused, text_of
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["scene"]
PLAN = {
    "title": "Two notes",
    "steps": [{"id": "a", "script": "builtin.echo"}, {"id": "b", "depends_on": ["a"], "script": "builtin.echo"}],
}
YAML = "title: One note\nsteps:\n  - {id: only, script: builtin.echo}\n"


@pytest.mark.spec("MCP-02", "MCP-02.a", "MCP-02.b")
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


@pytest.mark.spec("MCP-02", "MCP-02.b")
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


@pytest.mark.spec("MCP-02", "MCP-02.e")
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


@pytest.mark.spec("MCP-02", "OPS-12.a")
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


@pytest.mark.spec("MCP-02")
@pytest.mark.parametrize("wire", WIRES)
async def test_every_bad_argument_is_refused_with_what_to_do(scene: HttpHarness, wire: str) -> None:
    said: list[tuple[str, str, str]] = []
    async with mcp_client(scene, await scene.token(ADA), wire) as client:
        for tool, arguments, expected in HOSTILE:
            result = await client.call_tool(tool, arguments)
            said.append((tool, expected, text_of(result) if result.is_error else "accepted"))

    assert [one for one in said if one[1] not in one[2]] == []
    assert [one for one in said if "Traceback" in one[2] or "pydantic.dev" in one[2] or len(one[2]) > 4_000] == []


@pytest.mark.spec("MCP-02")
async def test_a_goal_is_given_to_an_agent(scene: HttpHarness, tmp_path: Path) -> None:
    async with mcp_client(scene, await scene.token(ADA, (Right.RUN,))) as client:
        given = await done(
            client, "submit_goal", goal="Find the bug.", project=str(tmp_path), model="openai-chat:gpt-5", budget="1usd"
        )
        result = await done(client, "task_result", task=given["task"]["id"])

    assert (result["status"], result["exit_code"], result["answer"]) == ("running", 130, None)
    assert given["task"]["title"] == "Find the bug."


class Person:
    """Somebody at a client that can ask. Remembers what was shown."""

    def __init__(self, action: str = "accept", **content: Any) -> None:
        self.answer = ElicitResult(action=action, content=content or None)
        self.shown: list[ElicitRequestParams] = []

    async def __call__(self, _context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.shown.append(params)
        return self.answer


@pytest.mark.spec("MCP-02.c", "PER-13.g", "PER-03", "PER-06.a", "CARD-3.c")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("choice", list(Choice))
async def test_a_question_is_waited_for_shown_and_answered(scene: HttpHarness, wire: str, choice: Choice) -> None:
    request = await scene.ask()
    async with mcp_client(scene, await scene.token(ADA, (Right.APPROVE,)), wire) as client:
        waited = await done(client, "wait_for_task", task=request.identity.task_id)
        (listed,) = (await done(client, "list_approvals"))["items"]
        shown = await done(client, "show_approval", approval=request.id)
        answered = await done(
            client,
            "answer_approval",
            approval=request.id,
            choice=choice,
            reason="as agreed",
            input_digest=listed["input_digest"],
        )
    verdict = await scene.verdict()
    answer = await scene.bench.store.consent.answer_of(request.id)

    assert waited["approvals"] == [request.id]
    assert "answer_approval" in waited["hint"]
    assert (listed["tool"], listed["target"]["shown"], listed["may_answer"]) == (request.tool, request.shown, True)
    assert {name: shown[name] for name in listed} == listed
    assert answered["answer"]["principal"] == ADA
    assert (verdict.is_allowed, verdict.reason) == (choice is not Choice.DENY, "as agreed")
    assert answer is not None
    assert (answer.channel, answer.principal, str(answer.metadata["token"])[:4]) == ("mcp", ADA, "tok_")


@pytest.mark.spec("MCP-02.c", "PER-13.g")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_can_ask_asks_its_person_and_the_model_takes_no_part(scene: HttpHarness, wire: str) -> None:
    request = await scene.ask()
    person = Person(choice="deny", reason="not there")
    async with mcp_client(scene, await scene.token(ADA), wire, elicitation_callback=person) as client:
        answered = await done(client, "answer_approval", approval=request.id)
    verdict = await scene.verdict()

    assert len(person.shown) == 1
    assert request.shown in person.shown[0].message
    assert request.tool in person.shown[0].message
    assert (answered["answer"]["choice"], answered["answer"]["principal"]) == ("deny", ADA)
    assert (verdict.is_allowed, verdict.reason) == (False, "not there")


@pytest.mark.spec("MCP-02.c", "PER-13.g")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_dialog_that_is_closed_is_no_answer(scene: HttpHarness, wire: str, action: str) -> None:
    request = await scene.ask()
    async with mcp_client(scene, await scene.token(ADA), wire, elicitation_callback=Person(action)) as client:
        said = await refused(client, "answer_approval", approval=request.id)

    assert "it still waits" in said
    assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("MCP-02.c", "PER-13.g", "MCP-02.d")
@pytest.mark.parametrize("wire", WIRES)
async def test_without_a_dialog_or_the_right_nothing_is_answered(scene: HttpHarness, wire: str) -> None:
    request = await scene.ask()
    answer = {"approval": request.id, "choice": "allow_once", "input_digest": request.input_digest}
    async with mcp_client(scene, await scene.token(ADA), wire) as client:
        no_dialog = await refused(client, "answer_approval", approval=request.id)
        other_input = await refused(client, "answer_approval", **{**answer, "input_digest": "0" * 64})
    person = Person(choice="allow_once")
    async with mcp_client(scene, await scene.token(ADA, (Right.RUN,)), wire, elicitation_callback=person) as client:
        no_right = [await refused(client, "answer_approval", **more) for more in (answer, {"approval": request.id})]
        (listed,) = (await done(client, "list_approvals"))["items"]
        waited = await done(client, "wait_for_task", task=request.identity.task_id)

    assert "cannot ask its user" in no_dialog
    assert "not the input which waits" in other_input
    assert all("needs the right 'approve'" in said for said in no_right)
    assert person.shown == []
    assert (listed["may_answer"], listed["may_not_because"]) == (False, "the token does not carry the right 'approve'")
    assert "soong approvals watch" in waited["hint"]
    assert await scene.bench.store.consent.answer_of(request.id) is None


INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
SPEAKS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
FROM_A_PROCESS = """
import json, sys, urllib.error, urllib.request
from soong.shared.sandbox.family import mark_family
if sys.argv[1] == "run":
    mark_family()
request = urllib.request.Request(sys.argv[2] + "/mcp", sys.argv[4].encode(), headers={
    "Authorization": "Bearer " + sys.argv[3], "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream"})
try:
    with urllib.request.urlopen(request, timeout=30) as response:
        print(response.status)
except urllib.error.HTTPError as error:
    print(error.code, json.loads(error.read())["code"])
"""


async def opened_session(client: httpx.AsyncClient) -> dict[str, str]:
    """Shake hands; return the headers of the session."""
    response = await client.post("/mcp", json=INITIALIZE, headers=SPEAKS)
    assert response.status_code == 200, response.text
    return {**SPEAKS, "Mcp-Session-Id": response.headers["mcp-session-id"]}


@pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h")
async def test_the_edge_refuses_what_it_refuses_everywhere(scene: HttpHarness) -> None:
    token = await scene.token()

    nobody = await scene.with_token("").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    page = await scene.with_token(token, Origin="https://evil.example").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    name = await scene.with_token(token, Host="evil.example").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    large = await scene.caller.post("/mcp", content=b"x" * (scene.api.limits.body_bytes + 1), headers=SPEAKS)
    broken = await scene.caller.post("/mcp", content=b"{", headers={**SPEAKS, "Content-Type": "application/json"})
    elsewhere = await scene.caller.post("/mcp/", json=INITIALIZE, headers=SPEAKS)

    assert [code_of(one) for one in (nobody, page, name, large)] == [
        "unauthenticated",
        "origin_not_allowed",
        "host_not_allowed",
        "body_too_large",
    ]
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    assert broken.status_code == 400
    assert elsewhere.status_code in {403, 404}


@pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h")
async def test_a_session_belongs_to_the_token_that_opened_it(scene: HttpHarness) -> None:
    session = await opened_session(scene.caller)
    other = await scene.someone(BOB)
    same_principal = await scene.someone(ADA)

    foreign = [(await one.post("/mcp", json=LIST, headers=session)).status_code for one in (other, same_principal)]
    deleted = (await other.delete("/mcp", headers=session)).status_code
    own = await scene.caller.post("/mcp", json=LIST, headers=session)

    assert foreign == [404, 404]
    assert deleted == 404
    assert own.status_code == 200
    assert "wait_for_task" in own.text


@pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h")
async def test_a_session_has_the_rights_of_each_request_and_not_of_its_first(scene: HttpHarness) -> None:
    """A token that is revoked while its session is open is refused with the next request."""
    text = await scene.token(BOB, (Right.READ,))
    client = scene.with_token(text)
    session = await opened_session(client)
    before = (await client.post("/mcp", json=LIST, headers=session)).status_code
    await scene.bench.store.access.revoke_token(text[6:36], now_us=scene.bench.clock.now_us())

    after = await client.post("/mcp", json=LIST, headers=session)

    assert (before, code_of(after)) == (200, "unauthenticated")


@pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h", "MCP-02.d")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_a_program_of_a_run_speaks_no_mcp_whatever_its_token_may_do(scene: HttpHarness) -> None:

    said = {}
    for right in (Right.READ, Right.APPROVE):
        token = await scene.token(ADA, (right,))
        for who in ("run", "person"):
            argv = [sys.executable, "-c", FROM_A_PROCESS, who, scene.address, token, json.dumps(INITIALIZE)]
            ended = await asyncio.to_thread(
                subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False
            )
            said[(right, who)] = ended.stdout.strip() or ended.stderr

    assert said == {
        (Right.READ, "run"): "403 forbidden",
        (Right.READ, "person"): "200",
        (Right.APPROVE, "run"): "403 forbidden",
        (Right.APPROVE, "person"): "200",
    }


@pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h")
async def test_a_stopped_server_lets_a_wait_end_with_an_answer(open_http: OpenScene) -> None:
    async with open_http() as scene:
        request = await scene.ask()
        async with mcp_client(scene, await scene.token(ADA)) as client:
            first = await done(client, "wait_for_task", task=request.identity.task_id)
            waiting = asyncio.ensure_future(
                done(client, "wait_for_task", task=request.identity.task_id, seconds=45, after=first["state"])
            )
            await asyncio.wait({waiting}, timeout=1)
            scene.stop.set()
            async with asyncio.timeout(20):
                ended = await waiting

    assert ended["status"] == "running"
