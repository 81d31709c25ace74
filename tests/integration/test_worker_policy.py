"""A plan's step under two configurations: the client's makes the session's policy, the worker's only tightens it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import StepEnd
from soong.shared.tools import permission_check as risk
from soong.shared.toolsets.mcp.toolset import servers_of
from tests.integration.mcp.scene import look_once
from tests.integration.mcp.test_odd_servers import config as odd_server
from tests.integration.runner_site import RunnerSite
from tests.scripted import calls as made
from tests.scripted import error_of as last_error
from tests.waiting import dropped, until

WRITE: JsonObject = {"call": "code.write_file", "with": {"path": "out/a.md", "content": "x"}}
READ: JsonObject = {"call": "code.read_file", "with": {"path": "notes.md"}}


@dataclass
class Site(RunnerSite):
    """A site with a client's configuration, which may change once the step is planned."""

    client_config: str = ""
    allow: Sequence[str] = ()
    later_client_config: str | None = None

    async def run(self, *calls: JsonObject, tools: Sequence[str]) -> tuple[StepEnd, list[Event]]:
        """Plan these calls as one step's script, run it, and return its end and its run's events."""
        for folder in ("client", "worker", "project/out"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.project / "notes.md").write_text("notes", encoding="utf-8")
        (self.root / "client" / "config.toml").write_text(self.client_config, encoding="utf-8")
        step: JsonObject = {"id": "a", "instructions": "x", "allowed_tools": list(tools), **made(*calls)}
        await self.submit({"title": "t", "steps": [step]}, allow=self.allow)
        if self.later_client_config is not None:
            (self.root / "client" / "config.toml").write_text(self.later_client_config, encoding="utf-8")
        claim, end = await self.work()
        return end, list(await self.store.runs.events(claim.identity.run_id))


REFUSED = EventType.TOOL_DENIED


def error_of(end: StepEnd) -> str:
    return last_error(end.output)


def rule(effect: str, scope: str, tools: str = "code.*") -> str:
    return f'[[permission.rules]]\neffect = "{effect}"\ntools = "{tools}"\nscope = "{scope}"\n'


@pytest.mark.spec("PER-10", "PER-19", "REG-08")
async def test_an_allow_rule_of_the_clients_configuration_lets_a_worker_write(tmp_path: Path) -> None:
    site = Site(tmp_path, client_config=rule("allow", f"{tmp_path}/project/out"))

    end, events = await site.run(WRITE, tools=["code.write_file"])

    assert error_of(end) == ""
    assert (site.project / "out/a.md").read_text() == "x"
    (decided,) = [event for event in events if event.type == EventType.PERMISSION_DECIDED]
    assert (decided.data["author"], decided.data["source"]) == ("rule", "config.toml")
    types = [event.type for event in events]
    assert types.index(EventType.PERMISSION_DECIDED) < types.index(EventType.TOOL_STARTED)


@pytest.mark.spec("ETS-01.g")
async def test_a_tool_that_has_vanished_is_an_error_of_its_call_and_the_run_goes_on(tmp_path: Path) -> None:
    """The run's stored set has it, and the worker that took the run up has it no more."""
    site = Site(tmp_path, worker_config='[tools]\nhidden = ["code.list_dir"]')
    vanished: JsonObject = {"call": "code.list_dir", "with": {}}

    end, events = await site.run(vanished, READ, tools=["code.read_file", "code.list_dir"])

    ended = [(event.type, event.data["tool"]) for event in events if event.type in (REFUSED, EventType.TOOL_COMPLETED)]
    assert ended == [(REFUSED, "code.list_dir"), (EventType.TOOL_COMPLETED, "code.read_file")]
    assert "tool_not_available" in repr([event.data for event in events if event.type == REFUSED])
    assert (end.end_reason, error_of(end)) == (EndReason.COMPLETED, "")


@pytest.mark.spec("PER-10", "PER-18")
async def test_a_workers_own_deny_rule_beats_what_the_session_allows(tmp_path: Path) -> None:
    site = Site(tmp_path, worker_config=rule("deny", f"{tmp_path}/project/out"))
    site.allow = (f"code.write_file:{tmp_path}/project/out",)

    end, events = await site.run(WRITE, tools=["code.write_file"])

    (decided,) = [event for event in events if event.type == EventType.PERMISSION_DECIDED]
    assert (error_of(end), decided.data["source"]) == ("permission_denied", "the worker's config.toml")
    assert not (site.project / "out/a.md").exists()


@pytest.mark.spec("PER-10", "EXE-13")
async def test_a_hook_of_the_worker_is_asked_first_and_its_yes_leaves_the_question(tmp_path: Path) -> None:
    """ClickHouse/nerve#150: of a background child's calls hooks were told, and the permission callback never."""
    hook = tmp_path / "hook.sh"
    hook.write_text("""#!/bin/sh\ncat > "$0.told"\nprintf '{"action": "allow"}'\n""", encoding="utf-8")
    hook.chmod(0o755)
    site = Site(tmp_path, worker_config=f'[[hooks.pre]]\nname = "ours"\ntools = "code.*"\ncommand = ["{hook}"]\n')

    running = asyncio.create_task(site.run(WRITE, tools=["code.write_file"]))
    await until(lambda: running.done() or bool(site.store.rows.requests))
    await dropped(running)

    (request,) = site.store.rows.requests.values()
    assert (request.tool, request.hook_result) == ("code.write_file", "allow")
    assert "code.write_file" in (tmp_path / "hook.sh.told").read_text()
    assert not (site.project / "out/a.md").exists()


@pytest.mark.spec("PER-10")
async def test_a_workers_own_allow_rule_opens_nothing(tmp_path: Path) -> None:
    site = Site(
        tmp_path,
        client_config=rule("deny", f"{tmp_path}/project/out"),
        worker_config=rule("allow", f"{tmp_path}/project/out"),
    )

    end, _ = await site.run(WRITE, tools=["code.write_file"])

    assert error_of(end) == "permission_denied"
    assert not (site.project / "out/a.md").exists()


@pytest.mark.spec("ETS-01", "ETS-05", "ETS-02")
async def test_what_the_client_hides_is_in_no_run_and_what_the_worker_hides_is_not_there(tmp_path: Path) -> None:
    hidden = '[tools]\nhidden = ["code.read_file"]\n'
    at_client = Site(tmp_path / "one", client_config=hidden)
    at_worker = Site(tmp_path / "two", worker_config=hidden)

    planned, _ = await at_client.run(READ, tools=["code.read_file", "code.list_dir"])
    offered, _ = await at_worker.run(READ, tools=["code.read_file", "code.list_dir"])

    assert (error_of(planned), error_of(offered)) == ("tool_not_available", "tool_not_available")


@pytest.mark.spec("FS-07.a")
async def test_a_configured_write_root_is_inside_and_others_are_outside(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    outside = {**WRITE, "with": {"path": str(shared / "a.md"), "content": "x"}}
    opened = Site(tmp_path / "one", worker_config=f'[paths]\nallowed_write_roots = ["{shared}"]\n')
    opened.allow = (f"code.write_file:{shared}",)
    closed = Site(tmp_path / "two", allow=opened.allow)

    _, inside = await opened.run(outside, tools=["code.write_file"])
    _, beyond = await closed.run({**outside, "with": {"path": str(shared / "b.md"), "content": "x"}}, tools=["code.*"])

    def is_inside(events: list[Event]) -> object:
        facts = next(event for event in events if event.type == EventType.PERMISSION_DECIDED).data["facts"]
        assert isinstance(facts, Mapping)
        return facts["is_inside_roots"]

    assert (is_inside(inside), is_inside(beyond)) == (True, False)


@pytest.mark.spec("PER-21.a")
async def test_a_run_that_reads_a_file_is_tainted_and_one_that_writes_is_not(tmp_path: Path) -> None:
    reader, writer = Site(tmp_path / "one"), Site(tmp_path / "two")
    writer.allow = (f"code.write_file:{writer.project}/out",)

    _, read = await reader.run(READ, tools=["code.read_file"])
    _, written = await writer.run(WRITE, tools=["code.write_file"])

    assert await reader.store.runs.is_tainted(read[0].run_id)
    assert not await writer.store.runs.is_tainted(written[0].run_id)


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize("is_trusted", [False, True], ids=["not trusted", "trusted"])
async def test_a_run_that_is_given_tools_of_a_stranger_is_tainted_before_it_calls_one(
    tmp_path: Path, *, is_trusted: bool
) -> None:
    config = f"{odd_server()}trusted = {str(is_trusted).lower()}\n"
    site = Site(tmp_path, client_config=config, worker_config=config)
    for home in (tmp_path / "client", tmp_path / "worker"):
        home.mkdir()
        await look_once(servers_of(home, parse_config(config)))
    site.allow = (f"code.write_file:{site.project}/out",)

    end, events = await site.run(WRITE, tools=["code.write_file", "mcp.t.*"])

    assert end.end_reason is EndReason.COMPLETED
    assert await site.store.runs.is_tainted(events[0].run_id) != is_trusted


@pytest.mark.spec("PER-10")
async def test_a_worker_with_a_wrong_configuration_does_not_start(tmp_path: Path) -> None:
    site = Site(tmp_path, worker_config=rule("allow", "/"))

    with pytest.raises(InvalidConfigError, match=r"permission\.rules\[0\]"):
        await site.run(READ, tools=["code.read_file"])


@pytest.mark.spec("ETS-01.e")
@pytest.mark.parametrize("changes", [False, True])
async def test_a_change_of_the_configuration_counts_from_the_next_run(tmp_path: Path, changes: bool) -> None:
    hidden = '[tools]\nhidden = ["code.read_file"]\n'
    site = Site(tmp_path, client_config=hidden if not changes else "", later_client_config=hidden)

    end, _ = await site.run(READ, tools=["code.read_file"])

    assert error_of(end) == ("" if changes else "tool_not_available")


@pytest.mark.spec("ETS-01.h", "SKL-01.b")
async def test_loading_a_skill_adds_its_text_and_no_tool(tmp_path: Path) -> None:
    site = Site(tmp_path)
    skill = site.project / ".soong" / "skills" / "writing" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: writing\ndescription: d\nallowed-tools: [code.write_file]\n---\nWrite it.\n")
    load: JsonObject = {"call": "internal.load_skill", "with": {"name": "writing"}}

    end, events = await site.run(load, WRITE, tools=["internal.load_skill"])

    ends = [event.type for event in events if event.type in (EventType.TOOL_COMPLETED, EventType.TOOL_DENIED)]
    (run_id,) = {event.run_id for event in events}
    assert (error_of(end), ends) == ("tool_not_available", [EventType.TOOL_COMPLETED, EventType.TOOL_DENIED])
    (text,) = [str(node.payload["text"]) for node in await site.store.runs.nodes(run_id) if node.kind == "skill"]
    assert text.endswith("\n\nWrite it.")
    assert not (site.project / "out" / "a.md").exists()


@pytest.mark.spec("PER-10.d", "PER-08.a")
async def test_a_loaded_skill_that_allows_itself_a_tool_grants_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    skill = site.project / ".soong" / "skills" / "writing" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: writing\ndescription: d\nallowed-tools: [code.write_file]\n---\nWrite it.\n")
    load: JsonObject = {"call": "internal.load_skill", "with": {"name": "writing"}}

    running = asyncio.create_task(site.run(load, WRITE, tools=["internal.load_skill", "code.write_file"]))
    await until(lambda: running.done() or bool(site.store.rows.requests))
    await dropped(running)

    (request,) = site.store.rows.requests.values()
    events = await site.store.runs.events(request.identity.run_id)
    assert request.tool == "code.write_file"
    assert EventType.TOOL_COMPLETED in [event.type for event in events]
    assert not (site.project / "out" / "a.md").exists()


@pytest.mark.spec("PER-10.c", "FS-09.a")
@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".git/config", ".mcp.json"])
async def test_no_rule_of_anybody_opens_a_protected_name(tmp_path: Path, path: str) -> None:
    everything = rule("allow", f"{tmp_path}/project")
    site = Site(tmp_path, client_config=everything, worker_config=everything)
    site.allow = (f"code.write_file:{tmp_path}/project",)
    call: JsonObject = {**WRITE, "with": {"path": path, "content": "x"}}

    end, events = await site.run(call, tools=["code.write_file"])

    assert error_of(end) == "path_protected"
    assert EventType.PERMISSION_REQUESTED not in [event.type for event in events]
    assert not (site.project / path).exists()


# -- settings of the worker that every run of it is under
LOOK: JsonObject = {"call": "code.list_dir", "with": {"path": "."}}


@pytest.mark.spec("DIS-07.a")
@pytest.mark.parametrize(
    ("turns", "reason"), [(3, EndReason.MAX_TURNS), (5, EndReason.COMPLETED)], ids=["too few", "enough"]
)
async def test_a_run_has_the_turns_that_its_workers_setting_gives_it(
    tmp_path: Path, turns: int, reason: EndReason
) -> None:
    site = Site(tmp_path, worker_settings={"max_turns": turns})

    end, _ = await site.run(*[LOOK] * 4, tools=["code.*"])

    assert end.end_reason is reason


@pytest.mark.spec("EXE-08.a", "CMD-02")
@pytest.mark.parametrize("limit", ["tool_timeout_ms", "tool_max_timeout_ms"])
async def test_a_tool_has_the_time_that_its_workers_settings_give_it(tmp_path: Path, limit: str) -> None:
    tool: JsonObject = {
        "name": "team.wait",
        "description": "waits",
        "permission": "readonly",
        "input_schema": {"type": "object", "properties": {}},
        "command": "sleep",
        "args": ["60"],
    }
    for home in ("client", "worker"):
        (tmp_path / home / "tools").mkdir(parents=True)
        (tmp_path / home / "tools" / "wait.json").write_text(json.dumps(tool), encoding="utf-8")
    site = Site(tmp_path, worker_settings={limit: 200})
    site.allow = ("team.wait",)

    end, _ = await site.run({"call": "team.wait", "with": {}}, tools=["team.wait"])

    assert error_of(end) == "timeout"


@pytest.mark.spec("RES-03.b")
async def test_a_result_has_the_size_that_its_workers_setting_gives_it(tmp_path: Path) -> None:
    site = Site(tmp_path, worker_settings={"max_result_chars": 1_000})
    (tmp_path / "project").mkdir()
    for number in range(100):
        (tmp_path / "project" / f"a-file-with-a-long-name-{number}").touch()

    _, events = await site.run(LOOK, tools=["code.list_dir"])

    (ended,) = [event for event in events if event.type == EventType.TOOL_COMPLETED]
    assert ended.data["truncated"] is True


@pytest.mark.spec("FS-01.c", "RES-03.b")
@pytest.mark.parametrize("limit", [1_000, 50_000])
async def test_a_page_of_a_file_has_the_size_that_its_workers_setting_gives_it(tmp_path: Path, limit: int) -> None:
    site = Site(tmp_path, worker_settings={"max_result_chars": limit})
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "long.txt").write_text(f"{'x' * 90}\n" * 1_000, encoding="utf-8")
    read: JsonObject = {"call": "code.read_file", "with": {"path": "long.txt", "max_lines": 1_000}}

    end, _ = await site.run(read, tools=["code.read_file"])

    output: Any = end.output
    assert output["results"][0]["value"]["next_start_line"] == limit // 98 + 1  # 90 characters, a number of 7, an end


CLASSIFIER = """
from soong import Risk, risk_classifier


@risk_classifier
def team(tool):
    return Risk.CRITICAL if tool.name == "code.write_file" else Risk.READ
"""


@pytest.mark.spec("PER-11.c")
async def test_a_classifier_of_a_workers_module_makes_a_call_ask_that_a_rule_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(risk, "_REGISTERED", [])
    (tmp_path / "risks_of_a_worker.py").write_text(CLASSIFIER, encoding="utf-8")
    site = Site(tmp_path, worker_settings={"tools": ("risks_of_a_worker",), "import_path": str(tmp_path)})
    site.allow = (f"code.write_file:{tmp_path}/project/out",)

    running = asyncio.create_task(site.run(WRITE, tools=["code.write_file"]))
    await until(lambda: running.done() or bool(site.store.rows.requests))
    await dropped(running)

    (request,) = site.store.rows.requests.values()
    assert (request.tool, request.risk) == ("code.write_file", "critical")
    assert not (site.project / "out/a.md").exists()
