"""Every tool of the default registry is called without a model, through the SDK and one service (EXE-12)."""

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

import soong
from soong.shared.core.jsontext import Json
from soong.shared.tools.result import ToolResult
from tests.answering import allow
from tests.system.cli_scene import CliHarness
from tests.system.test_cli_ask import WORKER, worker
from tests.wires.wire import Wires

CONFIG: Final = """
[tools]
dangerous = true
defer = ["code.search"]
"""
CHILD: Final[dict[str, Json]] = {"instructions": "Say yes.", "model": WORKER}
STEP: Final[dict[str, Json]] = {"id": "a", "kind": "python", "call": "builtin.echo", "inputs": {"x": 1}}
HELD: Final[dict[str, Json]] = {**STEP, "pool": "nobody"}
WAITS: Final[dict[str, Json]] = {"title": "t", "steps": [HELD]}

CALLS: Final[tuple[tuple[str, Mapping[str, Json], str], ...]] = (
    ("code.write_file", {"path": "a.txt", "content": "one\n"}, ""),
    ("code.edit_file", {"path": "a.txt", "edits": [{"old": "one", "new": "two"}]}, ""),
    ("code.read_file", {"path": "a.txt"}, ""),
    ("code.list_dir", {"path": "."}, ""),
    ("code.search", {"query": "two"}, ""),
    ("code.run_command", {"argv": ["true"]}, ""),
    ("web.fetch", {"url": "http://127.0.0.1:9/"}, "network_denied"),  # the tool's own refusal of a private address
    ("internal.list_skills", {}, ""),
    ("internal.load_skill", {"name": "notes"}, ""),
    ("internal.recall_memory", {"query": "x"}, ""),
    ("internal.tool_search", {"query": "search files"}, ""),
    ("agent.plan_template", {}, ""),
    ("agent.task_template", {}, ""),
    ("agent.list_agent_definitions", {}, ""),
    ("agent.list_workers", {}, ""),
    ("agent.create_sub_agent", {**CHILD, "agent": "explorer"}, ""),
    ("agent.fork_agent", CHILD, ""),
    ("agent.dispatch_worker", CHILD, ""),
    ("agent.task_create", WAITS, ""),
    ("agent.task_list", {}, ""),
    ("agent.task_get", {}, ""),
    ("agent.task_query_steps", {}, ""),
    ("agent.task_update", {"add_steps": [{**HELD, "id": "b"}]}, ""),
    ("agent.task_fail", {"reason": "enough"}, ""),
    ("agent.task_create", WAITS, ""),
    ("agent.task_cancel", {"reason": "enough"}, ""),
    ("agent.task_create", {"title": "t", "steps": [STEP]}, ""),
    ("agent.task_complete", {}, "execution_failed"),  # it ended by itself
    # A call by hand holds no step and starts its run alone: these tools say so themselves.
    ("agent.task_claim_step", {"step_id": "a"}, "step_not_claimed"),
    ("agent.task_update_step", {"step_id": "a", "progress": "half"}, "step_not_claimed"),
    ("agent.inspect_agent", {"run_id": "run_1"}, "invalid_input"),
)
"""Tool, arguments, and the error that the tool itself ends in; empty: none."""


@pytest.mark.spec("EXE-12.a", "EXE-12.b")
async def test_every_registered_tool_is_called_without_a_model(cli: CliHarness, wires: Wires) -> None:
    skill = cli.home / "skills" / "notes" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: notes\ndescription: d\n---\nWrite.\n")
    (cli.home / "config.toml").write_text(CONFIG)
    wires.will(*(worker(text="yes") for _ in range(3)))
    await asyncio.to_thread(cli.serve, "run")
    ended: list[tuple[str, ToolResult]] = []
    async with soong.open_tools(agent_home=cli.home, project=cli.folder, permission_callback=allow) as session:
        registered = {tool.name for tool in session.registry.definitions()}
        for tool, arguments, _ in CALLS:
            while tool == "agent.task_complete":  # the newest task ends by itself
                told = (await session.call("agent.task_get", {})).data
                if isinstance(told, dict) and told["status"] != "running":
                    break
            ended.append((tool, await session.call(tool, arguments)))

    assert registered == {tool for tool, _, _ in CALLS}
    errors = [(tool, "" if result.error is None else result.error.type.value) for tool, result in ended]
    assert errors == [(tool, error) for tool, _, error in CALLS], [result.error for _, result in ended if result.error]
    outputs = [
        result.data["output"] for _, result in ended if isinstance(result.data, dict) and "output" in result.data
    ]
    assert outputs == ["yes"] * 3
