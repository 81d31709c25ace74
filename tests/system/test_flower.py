"""What a real Flower shows of a deployment: runs by name, what agents run into, and nothing that is secret."""

import asyncio
import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.wire.notifier import queue_key, queue_of
from soong.shared.permissions.request import Choice
from tests.extra import console_folder
from tests.model.builders import make_answer
from tests.scripted import call, calls
from tests.servers import free_port
from tests.system.browser_scene import drive
from tests.system.deployment import Deployment, end
from tests.warm import warm_parent

AUTH = "watcher:a-long-password"
AGENT = "default_worker_agent"

TROUBLED: JsonObject = {
    "title": "what agents run into",
    "steps": [
        {
            "id": "asks",
            "title": "ask",
            "allowed_tools": ["code.*"],
            "instructions": "write",
            **calls(call("code.write_file", path="note.txt", content="CANARY-CONTENT")),
        },
        {
            "id": "errs",
            "title": "err",
            "allowed_tools": ["code.*"],
            "instructions": "read",
            **calls(call("code.read_file", path="CANARY-PATH.txt")),
        },
        {
            "id": "turns",
            "title": "turn",
            "allowed_tools": ["code.*"],
            "instructions": "look",
            **calls(*[call("code.list_dir")] * 50),
        },
    ],
}


@dataclass(frozen=True, slots=True)
class Flower:
    """A Flower process, by its port."""

    port: int

    def page(self, path: str) -> str:
        """Return a page; empty while it does not answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", f"Basic {base64.b64encode(AUTH.encode()).decode()}")
        with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read()).decode()
        return ""

    def counted(self) -> dict[tuple[str, str], float]:
        """Return Flower's event counter by type and task name, over all workers."""
        found: dict[tuple[str, str], float] = {}
        for line in self.page("/metrics").splitlines():
            if line.startswith("flower_events_total{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                key = (labels["type"], labels["task"])
                found[key] = found.get(key, 0) + float(line.rpartition(" ")[2])
        return found


@contextmanager
def flower_process(redis_url: str, folder: Path) -> Iterator[Flower]:
    """Run Flower as ``soong flower`` does."""
    auth, port = folder / "flower.auth", free_port()
    auth.write_text(AUTH)
    words = ("flower", "--auth-file", str(auth), "--port", str(port))
    env = {**os.environ, "SOONG_REDIS_URL": redis_url, "SOONG_AGENT_HOME": str(folder / "flower-home")}
    with (folder / "flower.log").open("wb") as log:
        process = warm_parent().start(
            "soong.orchestrator.cli", words, env=env, cwd=folder, stdout=log.fileno(), stderr=log.fileno()
        )
    try:
        yield Flower(port)
    finally:
        end(process)


@pytest.fixture
def flower(redis_tcp_url: str, tmp_path: Path) -> Iterator[Flower]:
    """Flower on an empty Redis."""
    with flower_process(redis_tcp_url, tmp_path) as flower:
        yield flower


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
async def service(flower: Flower, redis_tcp_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis_tcp_url, tmp_path) as deployment:

        async def answers() -> bool:
            return bool(await asyncio.to_thread(flower.page, "/healthcheck"))

        await deployment.until(answers, within_s=40)
        yield deployment


@pytest.mark.spec("CARD-5.b")
async def test_flower_shows_the_queue_of_each_pool_with_what_waits_in_it_and_complains_of_no_worker(
    flower: Flower, service: Deployment, redis_tcp_url: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(redis_tcp_url) as client:
        client.lpush(queue_key("default"), "{}", "{}", "{}")

    await asyncio.to_thread(flower.page, "/workers?refresh=1")

    async def is_shown() -> bool:
        page = await asyncio.to_thread(flower.page, "/broker")
        row = re.search(rf"<td>{re.escape(queue_of('default'))}</td>\s*<td[^>]*>(.*?)</td>", page, re.DOTALL)
        return row is not None and re.sub(r"<[^>]*>", "", row[1]).strip() == "3"

    await service.until(is_shown, within_s=20)

    assert "Inspect method" not in (tmp_path / "flower.log").read_text()


@pytest.mark.spec("OPS-08.a", "OPS-08.b", "OPS-08.c", "OPS-02.a", "OPS-02.c")
async def test_flower_counts_what_agents_run_into_and_tells_no_secret(
    service: Deployment, flower: Flower, tmp_path: Path, project: Path
) -> None:
    await service.start_workers(1, SOONG_MAX_TURNS="3", SOONG_LOG_LEVEL="debug")

    ended = await service.finished(await service.submit(TROUBLED, project=project))

    expected = {
        ("task-agent-approval-waiting", f"{AGENT}:asks"): 1.0,
        ("task-agent-tool-error", f"{AGENT}:asks"): 1.0,
        ("task-agent-tool-error", f"{AGENT}:errs"): 1.0,
        ("task-agent-budget-stop", f"{AGENT}:turns"): 1.0,
        ("task-failed", f"{AGENT}:turns"): 1.0,
        ("task-succeeded", f"{AGENT}:asks"): 1.0,
    }

    async def all_counted() -> bool:
        counted = await asyncio.to_thread(flower.counted)
        return {key: counted.get(key) for key in expected} == expected

    await service.until(all_counted, within_s=20)
    runs = await service.store.runs.list_runs(task_id=ended.id)
    shown = "".join(map(flower.page, ("/api/tasks", "/api/workers", "/metrics", "/tasks", "/workers")))
    shown += "".join(flower.page(f"/task/{run.identity.run_id}") for run in runs)
    shown += service.logs() + (tmp_path / "flower.log").read_text()
    tokens = [run.token for run in runs if run.token]
    assert len(tokens) >= 3
    assert f"{AGENT}:turns" in shown
    assert [secret for secret in (*tokens, "CANARY-CONTENT", "CANARY-PATH", AUTH) if secret in shown] == []


async def parked(service: Deployment, flower: Flower, project: Path) -> Task:
    """Submit a step that asks, and return its task once Flower shows the parked run as waiting."""
    await service.start_workers(1, SOONG_PARK_AFTER_S="0.2")
    asks = TROUBLED["steps"][0]  # type: ignore[index]  # a list of objects
    task = await service.submit({"title": "Ask", "steps": [asks]}, project=project, approval_mode=ApprovalMode.INBOX)

    async def is_parked() -> bool:
        return (await service.steps(task))["asks"].status is StepStatus.BLOCKED

    await service.until(is_parked)
    await shown_as(service, flower, task, "AGENT-APPROVAL-WAITING")
    return task


async def shown_as(service: Deployment, flower: Flower, task: Task, state: str) -> dict[str, Any]:
    """Wait until Flower shows the task's run in this state; return what it shows."""
    (step,) = (await service.steps(task)).values()
    found: dict[str, Any] = {}

    async def is_shown() -> bool:
        page = await asyncio.to_thread(flower.page, f"/api/task/info/{step.run_id}")
        found.update(json.loads(page or "{}"))
        return found.get("state") == state

    await service.until(is_shown)
    return found


@pytest.mark.spec("OPS-02.a", "OPS-08.a")
async def test_a_run_that_waits_for_a_person_is_shown_as_waiting_also_while_it_is_parked(
    service: Deployment, flower: Flower, project: Path
) -> None:
    task = await parked(service, flower, project)
    (request,) = await service.store.consent.pending(task.session_id)
    await service.store.consent.answer(make_answer(request, Choice.ALLOW_ONCE))

    shown = await shown_as(service, flower, task, "SUCCESS")

    assert shown["exception"] in {None, ""}
    assert shown["name"] == f"{AGENT}:asks"
    assert "plan='Ask' step='asks' title='ask'" in shown["args"]


@pytest.mark.spec("OPS-02.a", "OPS-08.a")
async def test_a_person_sees_in_flower_which_runs_wait_and_which_ran_into_a_limit(
    service: Deployment, flower: Flower, tmp_path: Path, project: Path
) -> None:
    folder = console_folder()
    await service.start_workers(1, SOONG_MAX_TURNS="3")
    task = await service.submit(TROUBLED, project=project, approval_mode=ApprovalMode.INBOX)

    async def has_failed() -> bool:
        return (await service.steps(task))["turns"].status is StepStatus.FAILED

    await service.until(has_failed)
    user, _, password = AUTH.partition(":")
    words = (f"http://127.0.0.1:{flower.port}", user, password, os.environ.get("CONSOLE_PICTURES") or str(tmp_path))
    found = await asyncio.to_thread(lambda: drive("flower.mjs", *words, folder=folder))

    states = {name: row for row in found["rows"] for name in ("asks", "errs", "turns") if f"{AGENT}:{name}" in row}
    assert "AGENT-APPROVAL-WAITING" in states["asks"]
    assert "FAILURE" in states["turns"]
    await service.command(task, "cancel")


@pytest.mark.spec("OPS-02.a")
async def test_a_parked_run_that_is_cancelled_is_no_longer_shown_as_waiting(
    service: Deployment, flower: Flower, project: Path
) -> None:
    task = await parked(service, flower, project)
    await service.command(task, "cancel")

    shown = await shown_as(service, flower, task, "REVOKED")

    (worker,) = await service.store.sessions.workers()
    assert shown["worker"] == worker.node_name, "the owner is not listed among the workers"
