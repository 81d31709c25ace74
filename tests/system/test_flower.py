"""What a real Flower shows of a deployment: runs by name, what agents run into, and nothing that is secret."""

import asyncio
import base64
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.jsontext import Json, JsonObject
from shared.wire.jobs import queue_of
from tests.system.deployment import Deployment, end

pytestmark = pytest.mark.timeout(120)

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
            "script": [
                {"call": "code.write_file", "with": {"path": "note.txt", "content": "CANARY-CONTENT"}, "save": "said"},
                {"finish": "${said.error}"},
            ],
        },
        {
            "id": "errs",
            "title": "err",
            "allowed_tools": ["code.*"],
            "instructions": "read",
            "script": [
                {"call": "code.read_file", "with": {"path": "CANARY-PATH.txt"}, "save": "said"},
                {"finish": "${said.is_error}"},
            ],
        },
        {
            "id": "turns",
            "title": "turn",
            "allowed_tools": ["code.*"],
            "instructions": "look",
            "script": [
                {"while": True, "limit": 50, "do": [{"call": "code.list_dir", "with": {}, "save": "said"}]},
                {"finish": "never"},
            ],
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
    auth = folder / "flower.auth"
    auth.write_text(AUTH)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with (folder / "flower.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli.flower_process", str(auth), "127.0.0.1", str(port)],
            env={**os.environ, "SOONG_REDIS_URL": redis_url, "SOONG_AGENT_HOME": str(folder / "flower-home")},
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
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
async def service(flower: Flower, redis_tcp_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis_tcp_url, tmp_path) as deployment:

        async def answers() -> bool:
            return bool(await asyncio.to_thread(flower.page, "/healthcheck"))

        await deployment.until(answers, within_s=40)
        yield deployment


@pytest.mark.spec("OPS-08.a", "OPS-08.b", "OPS-08.c", "OPS-02.a", "OPS-02.c")
async def test_flower_counts_what_agents_run_into_and_tells_no_secret(
    service: Deployment, flower: Flower, tmp_path: Path
) -> None:
    await service.start_workers(1, SOONG_MAX_TURNS="3", SOONG_LOG_LEVEL="debug")
    project = tmp_path / "project"
    project.mkdir()

    ended = await service.finished(await service.submit(TROUBLED, project=project))

    expected = {
        ("task-agent-approval-waiting", AGENT): 1.0,
        ("task-agent-tool-error", AGENT): 2.0,
        ("task-agent-budget-stop", AGENT): 1.0,
        ("task-failed", f"{AGENT}:turns"): 1.0,
        ("task-succeeded", f"{AGENT}:asks"): 1.0,
    }

    async def all_counted() -> bool:
        counted = await asyncio.to_thread(flower.counted)
        return {key: counted.get(key) for key in expected} == expected

    await service.until(all_counted, within_s=20)
    runs = await service.store.runs(task_id=ended.id)
    shown = "".join(map(flower.page, ("/api/tasks", "/api/workers", "/metrics", "/tasks", "/workers")))
    shown += "".join(flower.page(f"/task/{run.identity.run_id}") for run in runs)
    shown += service.logs() + (tmp_path / "flower.log").read_text()
    tokens = [run.token for run in runs if run.token]
    assert len(tokens) >= 3
    assert f"{AGENT}:turns" in shown
    assert [secret for secret in (*tokens, "CANARY-CONTENT", "CANARY-PATH", AUTH) if secret in shown] == []


@pytest.mark.spec("OPS-08")
async def test_a_run_is_shown_in_its_own_state_whatever_was_counted_of_it(
    service: Deployment, flower: Flower, tmp_path: Path
) -> None:
    await service.start_workers(1, SOONG_MAX_TURNS="3")
    project = tmp_path / "project"
    project.mkdir()

    ended = await service.finished(await service.submit(TROUBLED, project=project))
    by_step = {run.identity.step_key.rpartition("/")[2]: run for run in await service.store.runs(task_id=ended.id)}

    async def has_ended(step: str, state: str) -> bool:
        page = await asyncio.to_thread(flower.page, f"/api/task/info/{by_step[step].identity.run_id}")
        return f'"state": "{state}"' in page

    await service.until(lambda: has_ended("asks", "SUCCESS"))
    await service.until(lambda: has_ended("turns", "FAILURE"))


@pytest.mark.spec("CARD-5.b", "OPS-02.a")
async def test_flower_shows_the_queue_of_each_pool_and_what_waits_in_it(
    service: Deployment, flower: Flower, tmp_path: Path
) -> None:
    await service.start_workers(1, slots=8)
    os.kill(service.workers[0].pid, signal.SIGSTOP)  # so that what is sent to it stays in the queue
    steps: list[Json] = [{"id": f"s{number}", "kind": "python", "call": "builtin.echo"} for number in range(8)]
    await service.submit({"title": "t", "steps": steps})

    async def it_waits_in_the_queue() -> bool:
        page = await asyncio.to_thread(flower.page, "/broker")
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
        shown = [re.sub(r"<[^>]+>", " ", row).split() for row in rows]
        return [row[:2] for row in shown[1:]] == [[queue_of("default"), "1"]]

    await service.until(it_waits_in_the_queue)
