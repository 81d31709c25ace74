"""A run that is given a secret works with it, and leaves it in no row, file, artifact or log line (EVT-05)."""

import asyncio
import io
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from soong import AgentHandle, ToolCallError, scripted_agent
from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.log import configure, get_logger
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.step import Claim
from soong.shared.sandbox.redact import redactor
from soong.shared.sandbox.rooted import RootedFolder
from tests.integration.runner_site import RunnerSite
from tests.integration.sql_stores import opened
from tests.waiting import dropped, until

SECRET = "correct-horse-battery-staple"
DENY = '[[permission.rules]]\neffect = "deny"\ntools = "code.write_file"\nscope = "/elsewhere"\n'
CONFIG = f'[commands]\nsecret_env = ["DEPLOY_TOKEN"]\n{DENY}'
SLOW = '[[hooks.pre]]\nname = "slow"\ncommand = ["/bin/sleep", "600"]\ntools = "code.search"\n'

TOOLS = ["code.read_file", "code.search", "code.write_file", "agent.task_update_step"]


@scripted_agent("tests.secrets")
async def use_token(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Put the token wherever a call can put it."""

    async def tried(tool: str, **arguments: Any) -> bool:
        try:
            await agent.call(tool, **arguments)
        except ToolCallError:
            return False
        return True

    token = inputs["token"]
    await tried("code.read_file", path=f"{agent.project}/secret.txt")
    await asyncio.gather(tried("code.search", query=token), tried("code.read_file", path=token))
    await tried("agent.task_update_step", progress=f"using {token}")
    is_written = await tried("code.write_file", path=f"{agent.project}/out.txt", content=f"token={token}")
    await tried("code.write_file", path="/elsewhere/x", content=token)
    return {"said": f"the token is {token}", "ok": not is_written}


STEP: JsonObject = {
    "id": "a",
    "instructions": "use ${inputs.token}",
    "inputs": {"token": "${inputs.token}"},
    "allowed_tools": TOOLS,
    "script": "tests.secrets",
}
PLAN: JsonObject = {"title": "t", "inputs": {"token": {}}, "steps": [STEP]}


class Site(RunnerSite):
    """A site over one database file, whose task is given the secret."""

    async def submitted(self) -> str:
        """Write the task; return its id."""
        return (await self.submit(PLAN, {"token": SECRET}, [f"code.write_file:{self.project}"])).id

    async def crash_during_the_search(self) -> Claim:
        """Let a worker die while a hook of its holds the search up, and its lease expire."""
        interruption = StopSignal()
        claim, runner, worker_id = await self.claimed(SLOW)
        running = asyncio.create_task(runner.run(claim, interruption))
        await until(lambda: self._has_open_input(claim))
        interruption.stop = "drop"
        await dropped(running)
        await self.store.claims.expire_worker(worker_id, 0, max_lost_leases=3, now_us=SystemClock().now_us())
        return claim

    async def _has_open_input(self, claim: Claim) -> bool:
        return any(row.open_input is not None for row in await self.store.runs.calls(claim.identity.run_id))

    def rows_with(self, word: str) -> list[str]:
        """Return where in the database a word stands, as table.column."""
        connection = sqlite3.connect(self.root / "soong.db")
        connection.row_factory = sqlite3.Row
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {
            f"{table}.{name}"
            for table in tables
            for row in connection.execute(f"SELECT * FROM {table}")  # our own tables
            for name in row.keys()  # noqa: SIM118  # a Row iterates over its values
            if word in str(row[name])
        }
        connection.close()
        return sorted(found)

    def files_with(self, word: str) -> list[str]:
        places = (self.root / "runs", self.root / "artifacts", self.root / "worker")
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        return [str(path.relative_to(self.root)) for path in files if word.encode() in path.read_bytes()]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("DEPLOY_TOKEN", SECRET)
    for folder in ("client", "worker", "project"):
        (tmp_path / folder).mkdir()
    (tmp_path / "project" / "secret.txt").write_text(f"the token is {SECRET}\n", encoding="utf-8")
    async with opened(f"sqlite:///{tmp_path}/soong.db") as store:
        yield Site(tmp_path, store, CONFIG, secrets=[SECRET])


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream, before = io.StringIO(), structlog.get_config()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("debug", process="test", clean=redactor([SECRET]).text)
    yield stream
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.spec("EVT-05.c", "EXE-02", "RES-06")
async def test_a_secret_that_a_run_works_with_is_left_nowhere(site: Site, log_lines: io.StringIO) -> None:
    task_id = await site.submitted()

    claim, end = await site.work()

    get_logger("tests").warning("ended", output=end.output, secret=SECRET)
    folders = RunArchive(site.store, site.artifacts, RootedFolder(site.root, "runs"))
    await folders.write(task_id)
    await folders.close()
    assert end.output == {"said": "the token is [redacted]", "ok": False}
    assert (site.project / "out.txt").read_text() == f"token={SECRET}", "the work itself is done with the real value"
    assert site.rows_with(SECRET) == ["tasks.inputs"]
    assert site.files_with(SECRET) == []
    assert SECRET not in log_lines.getvalue()
    assert len(await site.store.runs.calls(claim.identity.run_id)) == 6
    assert (site.root / "runs" / claim.identity.run_id / "deliverables" / "out.txt").read_text() == "token=[redacted]"


@pytest.mark.spec("EXE-02", "PER-19.a", "PER-19.b", "EVT-03")
async def test_every_call_of_a_run_has_its_row_with_inputs_facts_and_decision(site: Site) -> None:
    await site.submitted()

    claim, _ = await site.work()

    rows = await site.store.runs.calls(claim.identity.run_id)
    by_tool: dict[str, CallRow] = {row.tool: row for row in rows}
    assert [row.status.value for row in rows] == ["ended"] * 6
    assert by_tool["code.search"].inputs["call_input"] == {"same": True}
    assert by_tool["code.search"].inputs["model_input"] == {"query": "[redacted]"}
    for row in rows:
        facts, decision = row.facts["facts"], row.facts["decision"]
        assert isinstance(facts, dict)
        assert isinstance(decision, dict)
        assert {"traits", "risk", "scope", "target"} <= facts.keys()
        assert {"author", "rule", "reason", "is_allowed"} <= decision.keys()
    assert {row.is_write for row in rows if row.tool == "code.write_file"} == {True}


@pytest.mark.spec("EVT-05", "DAG-07")
async def test_a_read_that_is_run_again_after_a_crash_gets_its_whole_input(site: Site) -> None:
    await site.submitted()
    claim = await site.crash_during_the_search()

    assert site.rows_with(SECRET) == ["calls.inputs", "tasks.inputs"]
    still_open = [row for row in await site.store.runs.calls(claim.identity.run_id) if row.open_input is not None]
    assert "code.search" in {row.tool for row in still_open}
    assert SECRET not in repr(still_open)

    again, end = await site.work()

    assert again.identity.run_id == claim.identity.run_id
    assert end.output == {"said": "the token is [redacted]", "ok": False}
    assert site.rows_with(SECRET) == ["tasks.inputs"], "cleared with the end of the call"
    (found,) = [
        node.payload["data"]
        for node in await site.store.runs.nodes(claim.identity.run_id)
        if node.payload.get("tool") == "code.search"
    ]
    assert "secret.txt" in str(found), "the search was for the real word"
