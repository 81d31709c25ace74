"""Nothing that a run has started answers for a person, wherever it hides (PER-13)."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from soong import Choice, PermissionDecision, PermissionRequest, Soong
from soong.shared.core.jsontext import Json
from soong.shared.storage.sql.store import open_store
from tests.scripted import calls
from tests.servers import free_port
from tests.system import spy
from tests.system.cli_scene import CONSOLE_SCRIPT, scene, until
from tests.system.http_scene import Service

pytestmark = [pytest.mark.timeout(300), pytest.mark.spec("PER-13.h"), pytest.mark.asyncio(loop_scope="module")]

OF_A_RUN = "a run started this command"
ANSWERED = {
    "watch": OF_A_RUN,
    "resume": OF_A_RUN,
    "allow": "belongs to a run",
    "deny": "belongs to a run",
    "link": "belongs to a run",
    "daemon": "belongs to a run",
    "session": "belongs to a run",
    "namespace": "belongs to a run",
    "other_proc": "belongs to a run",
    "enter": "belongs to a run",
    "unmark": "belongs to a run|Operation not permitted",
    "sdk_attach": "runs do not answer for people",
    "http": "belongs to a run",
    "http_gone": "sent",
}
"""What each way of answering is told."""
CONSENTED = {
    "nested": "nobody is asked",
    "nested_asking": OF_A_RUN,
    "preview": "can be allowed now",
    "rule": OF_A_RUN,
    "step_consent": OF_A_RUN,
    "sdk_callback": OF_A_RUN,
    "sdk_rule": OF_A_RUN,
    "http_rule": "belongs to a run",
}
"""What each way of saying yes beforehand is told."""
KEYS = {"rotate": "exchange the signing key", "adopt": "publish a signing key", "retire": "end a signing key"}
"""What no program of a run may do to the deployment's keys."""
PRIVILEGED = ("namespace", "other_proc", "enter", "unmark")

ASKING = """
title: A task of the spy's own
steps:
  - id: write
    allowed_tools: [code.write_file]
    permissions: {write: [.]}
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: own.txt, content: x}}]}
"""


@dataclass
class Attempts:
    """What a spy was told, by its way, and what came of it."""

    folder: Path
    reports: Sequence[dict[str, Any]]
    answers: Sequence[dict[str, Any]]

    def words(self, way: str) -> str:
        return "\n".join(" ".join(str(one["words"]).split()) for one in self.reports if one["way"] == way)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service() -> AsyncIterator[Service]:
    with scene() as cli:
        cli.home.mkdir(mode=0o700)
        (cli.home / "config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
        cli.environment.update(SOONG_SLOTS="30", SOONG_TOOL_TIMEOUT_MS="250000")
        port = free_port()
        one = Service(cli, port, cli.start("up", "--http", str(port)))
        until(one.is_answering, "the API answers", cli.logs)
        yield one


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def attempts(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    """What the spy was told on every way but the one that kills its subreaper."""
    ways = [*ANSWERED, *CONSENTED, "token", *KEYS]
    if os.geteuid():
        ways = [way for way in ways if way not in PRIVILEGED]
    return await attempted(service, tmp_path_factory.mktemp("spy"), ways)


async def attempted(service: Service, folder: Path, ways: Sequence[str]) -> Attempts:
    """Let a spy try while a person's program sleeps over the questions of the other steps."""
    report = folder / "report"
    (folder / "asking.yaml").write_text(ASKING)
    config = {
        "soong": CONSOLE_SCRIPT,
        "home": str(service.cli.home),
        "folder": str(folder),
        "url": f"http://127.0.0.1:{service.port}",
        "token": service.token("local", "read", "run", "approve"),
        "plan": str(folder / "asking.yaml"),
        "report": str(report),
    }
    (folder / "spy.json").write_text(json.dumps(config))
    has_begun = asyncio.Event()
    is_over = Path(f"{report}.done").exists

    async def sleeping_person(request: PermissionRequest) -> PermissionDecision:
        if request.tool == "code.run_command":
            has_begun.set()
            return PermissionDecision(Choice.ALLOW_ONCE)
        assert has_begun.is_set(), "the spy's question was asked first"
        await asyncio.to_thread(until, is_over, "the spy is done", service.cli.logs, 200)
        return PermissionDecision(Choice.DENY, "the person wakes up")

    async with Soong.embedded(agent_home=service.cli.home) as soong:
        await soong.run(plan(folder, ways), permission_callback=sleeping_person, project=folder)
    reports = [json.loads(line) for line in report.read_text().splitlines()]
    return Attempts(folder, reports, await answers_about(service.cli.home, folder))


def plan(folder: Path, ways: Sequence[str]) -> dict[str, Json]:
    argv: list[Json] = [sys.executable, spy.__file__, str(folder / "spy.json"), *ways]
    call: dict[str, Json] = {"argv": argv, "timeout_ms": 240_000}
    return {
        "title": "A spy and what it goes for",
        "steps": [
            agent_step("spy", "code.run_command", call),
            {"id": "later", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3}},
            *(
                {
                    **agent_step(way, "code.write_file", {"path": str(folder / f"{way}.txt"), "content": ""}),
                    "depends_on": ["later"],
                }
                for way in ways
                if way in ANSWERED or way == "orphan"
            ),
        ],
    }


def agent_step(name: str, tool: str, arguments: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": name.replace("_", "-"),
        "allowed_tools": [tool],
        **calls({"call": tool, "with": arguments}, output={}),
    }


async def answers_about(home: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the audit log's answers to questions about files of a folder."""
    store = await open_store(f"sqlite:///{home}/soong.db", migrate=False)
    try:
        questions = await store.consent.questions(include_closed=True)
        about = {one.request.id for one in questions if one.request.shown.startswith(str(folder))}
        entries = await store.audit.audit_entries(limit=10_000, kinds=["answer"])
        return [dict(entry.data) for entry in entries if entry.data["request"] in about]
    finally:
        await store.close()


@pytest.mark.parametrize("way", ANSWERED)
async def test_a_program_of_a_run_answers_no_question(attempts: Attempts, way: str) -> None:
    """A watching terminal in a pty of the command's own wrote, and the audit log named a person."""
    if way in PRIVILEGED and (os.geteuid() or shutil.which("unshare") is None):
        pytest.skip("namespaces and limits are root's")

    assert re.search(ANSWERED[way], attempts.words(way)), attempts.words(way)
    assert not (attempts.folder / f"{way}.txt").exists()


@pytest.mark.parametrize("way", CONSENTED)
async def test_a_program_of_a_run_allows_nothing_beforehand(attempts: Attempts, way: str) -> None:
    assert CONSENTED[way] in attempts.words(way)
    assert not (attempts.folder / "own.txt").exists()


async def test_a_program_of_a_run_makes_no_token(attempts: Attempts) -> None:
    assert OF_A_RUN in attempts.words("token")


@pytest.mark.parametrize("way", KEYS)
async def test_a_program_of_a_run_changes_no_signing_key(attempts: Attempts, service: Service, way: str) -> None:
    assert OF_A_RUN in attempts.words(way)
    assert KEYS[way] in attempts.words(way)
    assert [key["state"] for key in service.cli.json("keys", "list")] == ["active"]


async def test_what_outlives_its_subreaper_answers_nothing(service: Service, tmp_path: Path) -> None:
    attempts = await attempted(service, tmp_path, ["orphan"])

    assert "belongs to a run" in attempts.words("orphan")
    assert not (tmp_path / "orphan.txt").exists()


async def test_every_answer_names_the_processes_that_it_came_from(attempts: Attempts) -> None:
    """The person's own program is the only one that has answered, and the audit log says which it was."""
    provenances = [answer["provenance"] for answer in attempts.answers]
    program = await asyncio.to_thread(os.path.realpath, sys.executable)

    assert {answer["channel"] for answer in attempts.answers} == {"sdk"}
    assert {answer["choice"] for answer in attempts.answers} == {"deny"}
    assert {provenance["processes"][0]["pid"] for provenance in provenances} == {os.getpid()}
    assert {provenance["processes"][0]["program"] for provenance in provenances} == {program}
    assert {provenance["processes"][-1]["pid"] for provenance in provenances} == {1}
    assert not any(process["is_run"] for provenance in provenances for process in provenance["processes"])
