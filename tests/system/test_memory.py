"""Memory with real processes: the page's first minute, an agent that recalls, a job on a provider's wire."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
from llmock.scenarios import ToolCall

from soong.shared.sandbox.subreaper import RLIMIT_LOCKS
from tests.architecture.document_examples import agrees, perform_warm, sittings
from tests.spec_document import ROOT
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, until
from tests.system.test_cli_ask import PLANNER, planner
from tests.system.test_cli_run import as_a_run
from tests.wires.wire import Wires

LONG = "The suite is slow because each test starts a server of its own and none is shared. " * 8
PROPOSED = {"memories": [{"content": "Tests share one server since May.", "scope": "project", "tags": ["tests"]}]}


@pytest.mark.spec("MEM-01", "MEM-02.c")
def test_the_first_minute_of_the_page_is_as_it_shows(tmp_path: Path) -> None:
    (sitting,) = sittings((ROOT / "docs" / "reference" / "memory.md").read_text(encoding="utf-8"))

    done = perform_warm(sitting, tmp_path / "home")

    wrong = [f"$ {command.line}\n" + "\n".join(said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.spec("MEM-01.a", "MEM-01.b", "MEM-02.a", "MEM-02.c")
def test_an_agent_recalls_and_its_session_is_remembered_by_a_run_of_its_own(cli: CliHarness, wires: Wires) -> None:
    note = cli.home / "memory" / "user" / "language.md"
    note.parent.mkdir(parents=True)
    note.write_text("Answer in German.\n")
    wires.will(
        planner(ToolCall("internal__recall_memory", {"query": "which language"})),
        planner(text=LONG),
        planner(ToolCall("final_result", PROPOSED)),
    )

    ended = cli.json("ask", "Why is the suite slow?", "--model", PLANNER)
    until(lambda: len(cli.json("memory", "list")) == 2, "the job has proposed something", cli.logs)

    assert (ended["status"], ended["answer"]) == ("completed", LONG.strip())
    bodies = [json.dumps(record.body, ensure_ascii=False) for record in wires.server.state.journal.records()]
    assert "Answer in German." in bodies[1]
    assert "from a person" in bodies[1]
    assert "Why is the suite slow?" in bodies[2]
    assert "internal__recall_memory" not in bodies[2]
    _, candidate = cli.json("memory", "list")
    assert (candidate["state"], candidate["scope"], candidate["is_tainted"]) == ("candidate", "project", False)
    (job,) = [run for run in cli.json("runs", "list") if run["definition"] == "memory_extractor"]
    assert (job["id"], job["role"], job["status"]) == (candidate["run"], "main", "completed")


@pytest.mark.spec("MEM-02.a", "FS-09", "PER-13.h")
def test_no_run_accepts_a_memory_or_writes_one(cli: CliHarness) -> None:
    note = cli.home / "memory" / "user" / "language.md"
    note.parent.mkdir(parents=True)
    note.write_text("Answer in German.\n")

    for command in ("accept", "reject", "forget"):
        done = subprocess.run(
            [*CONSOLE_SCRIPT, "memory", command, "language"],
            env={**os.environ, **cli.env},
            cwd=cli.folder,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=as_a_run,
        )
        assert done.returncode != 0
        assert "a run started this command" in done.stderr
    written = cli.json("tools", "call", "code.write_file", f"path={note.with_name('planted.md')}", "content=x")
    changed = cli.json("tools", "call", "code.write_file", f"path={note}", "content=x", "overwrite=true")
    read = cli.json("tools", "call", "code.read_file", f"path={note}")

    assert [each["error"]["type"] for each in (written, changed)] == ["path_protected", "path_protected"]
    assert read["error"]["type"] == "permission_no_callback"
    assert note.read_text() == "Answer in German.\n"
    assert resource.getrlimit(RLIMIT_LOCKS)[1] == resource.RLIM_INFINITY  # this test itself is nobody's run
