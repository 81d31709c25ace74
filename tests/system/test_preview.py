"""Consent before anything starts and for one reading: a step or a script that was seen is what runs (PER-17)."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from soong import Soong, TaskStatus
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.step import Outcome
from soong.shared.permissions.policy import Policy
from soong.shared.storage.sql.store import SqlStore
from tests.system.cli_scene import CliHarness, Terminal
from tests.system.deployment import ON_POSTGRES, Deployment

PLAN = """
title: Three writers
steps:
  - id: first
    title: Writes what it said
    allowed_tools: [code.write_file]
    permissions: {write: [out/], run: [[git, status]]}
    script: builtin.calls
    inputs:
      calls:
        - {call: code.write_file, with: {path: out/first.md, content: x}}
        - {call: code.write_file, with: {path: other/first.md, content: x}}
  - id: second
    depends_on: [first]
    allowed_tools: [code.write_file]
    permissions: {write: [out/]}
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: out/second.md, content: x}}]}
  - id: third
    allowed_tools: [code.write_file]
    script: builtin.echo
"""


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("o*/*.md"))


@pytest.mark.spec("PER-17", "PER-17.a")
def test_without_a_terminal_the_preview_is_printed_and_nothing_is_started(cli: CliHarness) -> None:
    plan = cli.plan(PLAN)
    cli.is_warm = False

    text = cli.run("run", plan, "--preview")
    document = cli.json("run", plan, "--preview")
    wrong = cli.run("run", plan, "--allow-step", "frist")

    assert text.returncode == 0
    assert f"write  {cli.folder}/out" in text.stdout
    assert "can be allowed now for code.write_file" in text.stdout
    assert "third  code.write_file" in text.stdout
    (union,) = document["union"]["write"]
    assert (union["shown"], union["effect"], union["scope"]) == (f"{cli.folder}/out", "ask", f"{cli.folder}/out")
    assert [step["is_grantable"] for step in document["steps"]] == [True, True, False]
    assert (wrong.returncode, "did you mean 'first'" in wrong.stderr) == (2, True)
    assert not (cli.home / "soong.db").exists()


@pytest.mark.spec("PER-17", "PER-17.b")
def test_one_answer_per_step_lets_its_own_request_run_and_asks_for_the_rest(cli: CliHarness) -> None:
    terminal = Terminal(cli, "run", cli.plan(PLAN), "--preview")

    terminal.expect("step first (1 of 2): Writes what it said")
    terminal.answer("1\n")
    terminal.expect("step second (2 of 2)")
    terminal.answer("2\n")
    terminal.expect("other/first.md")
    terminal.answer("3\n")
    terminal.expect("out/second.md")
    terminal.answer("3\n")

    assert terminal.wait() == 3
    assert written(cli.folder) == ["out/first.md"]
    task_id = cli.task_id()

    async def policy(store: SqlStore) -> Policy:
        return Policy.from_json((await store.sessions.session((await store.tasks.task(task_id)).session_id)).policy)

    found = cli.rows(policy)
    assert found is not None
    (rule,) = found.rules
    assert rule.step == f"{task_id}/first"
    assert rule.source.startswith("step consent by ")


@pytest.mark.spec("PER-17", "DAG-10")
def test_a_step_is_allowed_on_the_command_line_for_itself_alone(cli: CliHarness) -> None:
    done = cli.json("run", cli.plan(PLAN), "--allow-step", "first")

    denied = {denial["step"] for denial in done["denials"]}
    assert done["exit_code"] == 3
    assert denied == {"first", "second"}
    assert written(cli.folder) == ["out/first.md"]
    events = cli.json("runs", "tail", f"{done['id']}/first")
    allowed = [event["data"] for event in events if event["type"].endswith("permission_decided")]
    assert [one["choice"] for one in allowed] == ["allow", "deny"]
    assert allowed[0]["source"].startswith("step consent by ")
    results = cli.run("tasks", "show", done["id"], "--result").stdout
    assert "second: completed, partial\n  tools asked for: code.write_file\n  tools given: code.write_file\n" in results
    assert "  denied: code.write_file: permission_no_callback: " in results
    call = ("--tool", "code.write_file", "path=out/z", "content=x")
    ours = cli.run("permissions", "explain", "--task", f"{done['id']}/first", *call).stdout
    others = cli.run("permissions", "explain", "--task", f"{done['id']}/second", *call).stdout
    assert "code.write_file runs without asking" in ours
    assert f"for step {done['id']}/first (step consent by " in ours
    assert "code.write_file asks" in others


WRITER: Mapping[str, Json] = {"allowed_tools": ["code.write_file"], "script": "tests.write_path"}


@pytest.mark.spec("PER-17", "PER-04", "PER-18")
@ON_POSTGRES
async def test_consent_outlives_its_owner_and_serves_the_children_of_its_map_alone(
    service: Deployment, folder: Path
) -> None:
    """anomalyco/opencode#9554: "always allow" leaked to other agents."""
    plan: Mapping[str, Json] = {
        "title": "map",
        "inputs": {"names": ["left", "right"]},
        "steps": [
            {"id": "gate", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 0.2}},
            {
                "id": "each",
                "kind": "map",
                "depends_on": ["gate"],
                "over": "${inputs.names}",
                "as": "name",
                "step": {
                    **WRITER,
                    "permissions": {"write": [f"{folder}/out/${{name}}.md"]},
                    "inputs": {"path": f"{folder}/out/${{name}}.md"},
                },
            },
            {"id": "other", **WRITER, "depends_on": ["each"], "inputs": {"path": f"{folder}/out/other.md"}},
        ],
    }
    async with Soong.connect(service.database_url, service.redis_url, agent_home=service.settings.home) as soong:
        preview = soong.preview(plan, project=folder)
        task = await soong.start(plan, step_grants=preview.grants(["each"]), project=folder)
        await service.kill_orchestrator()
        await service.start_orchestrator()
        await service.start_workers(1)
        outcome = await task.wait()

    outcomes = {step.id: step.outcome for step in outcome.steps}
    assert outcome.status is TaskStatus.COMPLETED
    assert written(folder) == ["out/left.md", "out/right.md"]
    assert [(denial.step, denial.error) for denial in outcome.denials] == [("other", "permission_no_callback")]
    assert outcomes["each[left]"] is outcomes["each[right]"] is Outcome.CLEAN
    assert outcomes["other"] is Outcome.PARTIAL
