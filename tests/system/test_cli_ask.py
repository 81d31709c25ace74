"""``soong ask`` on a provider's wire: its answer as it grows, its children, its example."""

import json
import os
import re
import shlex
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from llmock.scenarios import Delay, Match, Reply, StreamFault, ToolCall

from tests.system.cli_scene import CliHarness, Terminal, permitting, until
from tests.wires.wire import Wires

pytestmark = pytest.mark.timeout(300)

SCENE = {"models": "openai-chat:gpt-*"}

PLANNER = "openai-chat:gpt-5"

WORKER = "openai-chat:gpt-5-mini"

OTHER = "openai-chat:gpt-4o"


def says(model: str, *calls: ToolCall, text: str = "") -> Reply:
    given: dict[str, Any] = {"tool_calls": calls} if calls else {"text": text}
    return Reply(**given, match=Match(model=model))


def planner(*calls: ToolCall, text: str = "") -> Reply:
    return says("gpt-5", *calls, text=text)


def worker(*calls: ToolCall, text: str = "") -> Reply:
    return says("gpt-5-mini", *calls, text=text)


@pytest.mark.spec("DIS-02", "DIS-01.b", "DIS-01.e", "DIS-06.c", "ETS-03", "CARD-3")
def test_an_agent_starts_children_side_by_side_and_sees_all_their_results(cli: CliHarness, wires: Wires) -> None:
    (cli.folder / "notes.txt").write_text("three bugs")
    wires.will(
        planner(
            ToolCall("agent__dispatch_worker", {"instructions": "Read ${notes.txt}.", "model": WORKER}),
            ToolCall("agent__create_sub_agent", {"instructions": "Guess.", "model": OTHER, "agent": "explorer"}),
        ),
        worker(ToolCall("code__read_file", {"path": "notes.txt"})),
        worker(text="it says: three bugs"),
        says("gpt-4o", text="four bugs"),
        planner(text="There are three bugs."),
    )

    ended = cli.json("ask", "How many bugs are there?", "--model", PLANNER)

    assert (ended["answer"], ended["exit_code"]) == ("There are three bugs.", 0)
    assert {step["output"] for step in ended["steps"]} == {"it says: three bugs", "four bugs"}
    runs = cli.json("runs", "list", "--task", ended["id"])
    (root,) = (run for run in runs if not run["step"])
    children = {run["role"]: run for run in runs if run["step"]}
    assert (root["role"], root["definition"], root["model"]) == ("orchestrator", "orchestrator", PLANNER)
    assert children.keys() == {"worker", "sub"}
    assert {run["parent_run"] for run in children.values()} == {root["id"]}
    last = str(wires.requests[-1].body["messages"])
    assert "it says: three bugs" in last
    assert "four bugs" in last
    first = next(one.body for one in wires.requests if one.body["model"] == "gpt-5-mini")
    assert "Read ${notes.txt}." in str(first["messages"])
    sub = str(next(one.body["messages"] for one in wires.requests if one.body["model"] == "gpt-4o"))
    assert "Guess." in sub
    assert "How many bugs" not in sub  # its parent's conversation


@pytest.mark.spec("DIS-11")
def test_an_ask_whose_steps_a_budget_cut_ends_with_1_and_names_them(cli: CliHarness, wires: Wires) -> None:
    child = ToolCall("agent__dispatch_worker", {"instructions": "Read.", "model": WORKER})
    under_way = Delay(seconds=3, match=Match(model="gpt-5-mini"))  # until all three have asked for room
    wires.will(planner(child, child, child), under_way, worker(text="one"), planner(text="ALL DONE"))

    ended = cli.json("ask", "Have three read.", "--model", PLANNER, "--budget", BUDGET)

    cut = [step for step in ended["steps"] if (step["error"] or {}).get("type") == "budget_exceeded"]
    assert (ended["status"], ended["answer"], ended["exit_code"]) == ("completed", "ALL DONE", 1)
    assert len(cut) == 2
    assert all("; requests under way reserve" in step["error"]["message"] for step in cut)
    assert "cut by a budget or a limit: 2 steps" in cli.run("tasks", "show", ended["id"]).stdout


BUDGET = "900tok"
"""The planner's first request takes most of it; with one worker's under way there is no room for another."""


@pytest.mark.spec("DAG-08")
def test_ctrl_c_pauses_the_agent_and_its_children_and_resume_continues(cli: CliHarness, wires: Wires) -> None:
    step = {"id": "wait", "instructions": "Wait.", "model": WORKER}
    wires.will(
        planner(ToolCall("agent__task_create", {"title": "wait", "steps": [step]})),
        planner(ToolCall("agent__dispatch_worker", {})),
        Delay(seconds=3, match=Match(model="gpt-5-mini")),
        worker(text="not seen by anybody"),
        worker(text="waited"),
        planner(ToolCall("agent__task_complete", {})),
        planner(text="It has waited."),
    )
    asking = cli.start("ask", "Wait.", "--model", PLANNER, "--json")
    until(lambda: "running" in cli.step_statuses().values(), "a child runs", cli.logs)

    asking.send_signal(signal.SIGINT)

    out, err = asking.communicate(timeout=60)
    stopped = json.loads(out)
    assert (asking.returncode, stopped["status"]) == (130, "interrupted"), err
    statuses = {task["status"] for task in cli.json("tasks", "list")}
    assert statuses == {"paused"}
    ended = cli.json("resume", stopped["id"])
    assert (ended["status"], ended["answer"]) == ("completed", "It has waited.")


@pytest.mark.spec("DIS-01.c", "DIS-06.b")
def test_a_fork_knows_what_its_parent_knew_and_starts_no_agents(cli: CliHarness, wires: Wires) -> None:
    (cli.folder / "notes.txt").write_text("three bugs")
    fork = {"instructions": "Find the worst of them.", "model": WORKER}
    wires.will(
        planner(ToolCall("code__read_file", {"path": "notes.txt"})),
        planner(ToolCall("agent__fork_agent", fork), ToolCall("agent__list_workers", {})),
        worker(ToolCall("agent__dispatch_worker", {"instructions": "No fork may do this."})),
        worker(text="the third"),
        planner(text="It is the third."),
    )

    ended = cli.json("ask", "Which bug is the worst?", "--model", PLANNER)

    assert (ended["answer"], [step["output"] for step in ended["steps"]]) == ("It is the third.", ["the third"])
    parents = [one.body for one in wires.requests if one.body["model"] == "gpt-5"]
    first, second = (one.body for one in wires.requests if one.body["model"] == "gpt-5-mini")
    known = parents[1]["messages"]
    assert first["messages"][: len(known)] == known
    assert first["messages"][-1]["content"] == "Find the worst of them."
    assert "agent__dispatch_worker" not in {tool["function"]["name"] for tool in first["tools"]}
    assert "tool_not_available" in str(second["messages"][-1])
    wires.verdict.assert_ok()
    (run,) = (run for run in cli.json("runs", "list", "--task", ended["id"]) if run["step"])
    assert (run["role"], run["usage"]["requests"]) == ("fork", 2)


@pytest.mark.spec("ETS-06", "DIS-02.c")
def test_an_unknown_definition_is_an_error_of_the_call_and_starts_nobody(cli: CliHarness, wires: Wires) -> None:
    wires.will(
        planner(ToolCall("agent__create_sub_agent", {"instructions": "Look.", "agent": "wizard"})),
        planner(text="there is no wizard"),
    )

    ended = cli.json("ask", "Use a wizard.", "--model", PLANNER)

    assert (ended["answer"], ended["steps"]) == ("there is no wizard", [])
    told = str(wires.requests[-1].body["messages"][-1])
    assert "wizard" in told
    assert "reviewer" in told


@pytest.mark.spec("DIS-01", "EVT-01")
def test_a_follow_up_question_continues_the_conversation_of_its_session(cli: CliHarness, wires: Wires) -> None:
    wires.will(
        planner(ToolCall("code__list_dir", {"path": "."})),
        planner(text="nothing is here"),
        planner(text="because nobody put anything here"),
        planner(text="that was all"),
    )

    first = cli.json("ask", "What is here?", "--model", PLANNER)
    second = cli.json("ask", "Why?", "--session", first["session"])
    third = cli.json("ask", "And?", "--session", second["id"])
    refused = cli.run("ask", "Why?", "--session", first["session"], "--allow", "code.write_file:/tmp/x")

    assert (second["answer"], second["session"]) == ("because nobody put anything here", first["session"])
    assert third["answer"] == "that was all"
    asked = [one.body["messages"] for one in wires.requests]
    assert asked[2][: len(asked[1])] == asked[1]
    assert [message["content"] for message in asked[2][-2:]] == ["nothing is here", "Why?"]
    assert asked[3][: len(asked[2])] == asked[2]
    (run,) = cli.json("runs", "list", "--task", third["id"])
    assert run["usage"]["requests"] == 1
    assert refused.returncode == 2
    assert "--session continues with the folder and the rules of the session" in refused.stderr


@pytest.mark.spec("DIS-06", "DIS-04")
def test_an_agent_hears_that_no_worker_can_take_a_step_and_decides(cli: CliHarness, wires: Wires) -> None:
    step = {"id": "draw", "instructions": "Draw.", "model": WORKER, "pool": "gpu"}
    cli.environment |= {"SOONG_NO_WORKER_S": "1"}
    wires.will(
        planner(ToolCall("agent__task_create", {"title": "draw", "steps": [step]})),
        planner(ToolCall("agent__dispatch_worker", {})),
        planner(ToolCall("agent__task_cancel", {"reason": "nobody draws"})),
        planner(text="nobody can draw"),
    )

    ended = cli.json("ask", "Draw.", "--model", PLANNER)

    assert (ended["status"], ended["answer"]) == ("completed", "nobody can draw")
    assert [one["status"] for one in ended["steps"]] == ["cancelled"]
    told = str(wires.requests[2].body["messages"][-1])
    assert "no capable worker: needs the pool" in told
    assert "gpu" in told


@pytest.mark.spec("DIS-02.b")
def test_agents_of_the_project_do_work_with_the_model_of_the_task(cli: CliHarness, wires: Wires) -> None:
    for folder in (".soong", ".claude"):
        (cli.folder / folder / "agents").mkdir(parents=True)
    own = "---\ndescription: Finds bugs.\nmodel: openai-chat:dear\n---\nYou find bugs."
    (cli.folder / ".soong/agents/finder.md").write_text(own)
    (cli.folder / ".claude/agents/judge.md").write_text("---\nname: judge\ndescription: Judges.\n---\nYou judge.")
    dispatch = {"instructions": "Find a bug.", "agent": "project.finder", "model": WORKER}
    step = {"id": "judge", "instructions": "Judge it.", "agent": "claude.judge", "model": WORKER}
    wires.will(
        planner(ToolCall("agent__list_agent_definitions", {})),
        planner(ToolCall("agent__dispatch_worker", dispatch)),
        planner(ToolCall("agent__task_create", {"title": "judge", "steps": [step]})),
        planner(ToolCall("agent__dispatch_worker", {})),
        planner(text="one bug"),
        worker(text="a bug"),
        worker(text="a real bug"),
    )

    ended = cli.json("ask", "Find a bug.", "--model", PLANNER)

    assert (ended["answer"], [one["status"] for one in ended["steps"]]) == ("one bug", ["completed", "completed"])
    asked = [one.body for one in wires.requests]
    assert {"project.finder", "claude.judge"} <= set(re.findall(r"[a-z]+\.[a-z]+", str(asked[1]["messages"][-1])))
    told = [str(body["messages"][0]) for body in asked if body["model"] == "gpt-5-mini"]
    assert ["You find bugs." in words for words in told] == [True, False]
    assert ["You judge." in words for words in told] == [False, True]
    assert "dear" not in str(asked)


@pytest.mark.spec("DIS-11", "DIS-07.c")
def test_a_budget_ends_the_agents_of_an_ask_and_a_higher_one_lets_it_continue(cli: CliHarness, wires: Wires) -> None:
    dispatch = ToolCall("agent__dispatch_worker", {"instructions": "Look.", "model": WORKER})
    (cli.home).mkdir(parents=True, exist_ok=True)
    prices = '[prices."openai-chat:*"]\ninput = 100\noutput = 100000\n'
    (cli.home / "config.toml").write_text(f'[budgets]\nday = "900usd"\n{prices}{permitting(WORKER)}')
    wires.will(planner(dispatch), worker(text="looked"), planner(dispatch), worker(text="looked again"))
    wires.will(planner(text="all is seen"))

    failed = cli.json("ask", "Look twice.", "--model", PLANNER, "--budget", "0.0001usd")
    asked = len(wires.requests)
    shown = cli.json("budget", failed["session"])
    ended = cli.json("resume", failed["id"], "--budget", "500usd")

    assert (failed["status"], failed["exit_code"], asked) == ("failed", 1, 1)
    assert "budget of 0.0001 USD" in failed["reason"]
    assert (shown["usd"]["limit"], shown["usd"]["reserved"]) == ("0.0001", "0")
    assert (ended["status"], ended["answer"]) == ("completed", "all is seen")
    after = cli.json("budget", ended["session"])
    sums = cli.json("usage", "--by", "session")
    assert (after["usd"]["limit"], sums[0]["requests"]) == ("500", 5)
    assert float(after["usd"]["used"]) == pytest.approx(float(sums[0]["cost_usd"]), abs=1e-4)
    assert cli.json("budget")["usd"]["limit"] == "900"


def test_the_goals_and_the_agent_in_the_guide_run(cli: CliHarness, wires: Wires) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    section = page.split("## Give an agent a goal")[1].split("\n## ")[0]
    lines = [line.replace("$PWD", str(cli.folder)) for line in section.splitlines() if line.startswith("soong ")]
    assert [line.split()[1] for line in lines] == ["ask", "agents", "agents", "ask"]
    path = {"path": "tests/test_all.py", "content": "def test_all(): ...\n"}
    work = {"instructions": "Write a test.", "agent": "test-writer", "allowed_tools": ["code.write_file"]}
    wires.will(
        Reply(text="None of them has."),
        Reply(tool_calls=(ToolCall("agent__dispatch_worker", work),)),
        Reply(tool_calls=(ToolCall("code__write_file", path),)),
        Reply(text="I wrote one."),
        Reply(text="There is a test now."),
    )

    done = [cli.run(*shlex.split(line, comments=True)[1:]) for line in lines]

    assert [one.returncode for one in done] == [0, 0, 0, 0], done
    assert "None of them has." in done[0].stdout
    assert done[1].stdout.endswith("agents/test-writer.md\n")
    assert (cli.folder / "tests" / "test_all.py").exists()
    assert "There is a test now." in done[3].stdout


CHILDREN = 50


@pytest.mark.spec("EXE-03.b", "DIS-02", "DAG-07")
def test_fifty_children_end_once_each_start_nobody_and_a_follow_up_outlives_the_service(
    cli: CliHarness, wires: Wires
) -> None:
    calls = [
        ToolCall("agent__create_sub_agent", {"title": f"c{number}", "instructions": f"N{number}.", "model": WORKER})
        for number in range(CHILDREN)
    ]
    third = ToolCall("agent__create_sub_agent", {"instructions": "Go on.", "model": WORKER})
    wires.will(
        planner(*calls),
        worker(third),
        Reply(text="done", match=Match(model="gpt-5-mini"), times=CHILDREN),
        planner(text="All are done."),
        planner(text="There were fifty."),
    )
    up = cli.up()

    ended = cli.json("ask", "Ask fifty.", "--model", PLANNER)

    assert (ended["answer"], ended["exit_code"]) == ("All are done.", 3), ended
    assert Counter(step["outcome"] for step in ended["steps"]) == {"clean": CHILDREN - 1, "partial": 1}
    assert Counter(step["status"] for step in ended["steps"]) == {"completed": CHILDREN}
    asked = Counter(one.body["model"] for one in wires.requests)
    assert asked == {"gpt-5": 2, "gpt-5-mini": CHILDREN + 1}

    family = psutil.Process(cli.record()["pid"]).children(recursive=True)
    os.kill(cli.record()["pid"], signal.SIGKILL)
    up.communicate(timeout=60)
    psutil.wait_procs(family, timeout=30)
    second = cli.json("ask", "How many?", "--session", ended["session"])

    assert second["answer"] == "There were fifty."
    assert "All are done." in str(wires.requests[-1].body["messages"])


EXAMPLES = Path(__file__).parents[2] / "examples"

REVIEWER = "openai-chat:gpt-5-mini"

FIXER = "openai-chat:gpt-4o"

BUGGY = "def mean(values):\n    return sum(values) / (len(values) - 1)\n"

FINDING = "src/stats.py:2 divides by one too few; version.py:1 has the wrong year"


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall("code__edit_file", {"path": path, "edits": [{"old": old, "new": new}]})


@pytest.mark.spec("DIS-01", "DIS-02", "PER-21")
def test_what_is_granted_is_fixed_and_what_is_not_is_told(cli: CliHarness, wires: Wires) -> None:
    (cli.folder / "src").mkdir()
    stats, version = cli.folder / "src" / "stats.py", cli.folder / "version.py"
    stats.write_text(BUGGY)
    version.write_text("YEAR = 1999\n")
    review = {"id": "review", "agent": "reviewer", "instructions": "Review src.", "model": REVIEWER}
    fix: dict[str, object] = {"agent": "implementer", "instructions": f"Fix: {FINDING}", "model": FIXER}
    wires.will(
        says("gpt-5", ToolCall("agent__task_create", {"title": "review", "steps": [review]})),
        says("gpt-5-mini", ToolCall("code__read_file", {"path": "src/stats.py"})),
        says("gpt-5-mini", text=FINDING),
        says("gpt-5", ToolCall("agent__dispatch_worker", {})),
        says("gpt-5", ToolCall("agent__dispatch_worker", fix)),
        says("gpt-4o", edit("src/stats.py", "(len(values) - 1)", "len(values)"), edit("version.py", "1999", "2026")),
        says("gpt-4o", text="stats.py is fixed; version.py was denied"),
        says("gpt-5", ToolCall("agent__task_complete", {})),
        says("gpt-5", text="One of two is fixed."),
    )

    goal = (EXAMPLES / "fix.md").read_text()
    ended = cli.json("ask", goal, "--model", PLANNER, "--allow", f"code.edit_file:{stats.parent}")

    assert ended["answer"] == "One of two is fixed."
    assert stats.read_text() == BUGGY.replace("(len(values) - 1)", "len(values)")
    assert version.read_text() == "YEAR = 1999\n"
    # The job that reads the session for memories asks the model last.
    assert any("permission_no_callback" in str(one.body["messages"]) for one in wires.requests[-2:])
    assert {run["definition"] for run in cli.json("runs", "list", "--task", ended["id"])} >= {
        "orchestrator",
        "implementer",
    }
    offered = next(one.body["tools"] for one in wires.requests if one.body["model"] == "gpt-5-mini")
    assert "code__edit_file" not in {tool["function"]["name"] for tool in offered}


def test_the_page_of_examples_says_how_it_is_asked() -> None:
    page = (EXAMPLES / "README.md").read_text()

    assert re.search(r'soong ask "\$\(cat examples/fix\.md\)" --model \S+ --allow code\.edit_file:\$PWD/src', page)


STALL_S = 8.0

ANSWER = "The folder holds nothing at all, as far as anybody can see from here."


@pytest.mark.spec("EVT-05")
def test_a_terminal_shows_an_answer_while_it_arrives(cli: CliHarness, wires: Wires) -> None:
    wires.will(StreamFault("stall", after_chunks=8, stall_seconds=STALL_S), Reply(text=ANSWER))

    terminal = Terminal(cli, "ask", "What is in this folder?", "--model", PLANNER)
    terminal.expect("The folder holds")

    assert not wires.server.state.journal.records()  # the answer is still on its way
    assert "from here" not in terminal.text
    terminal.expect(ANSWER)
    assert terminal.wait() == 0


@pytest.mark.spec("EXE-07", "EXE-10")
@pytest.mark.parametrize("who", ["gpt-5", "gpt-5-mini"], ids=["the agent", "its worker"])
def test_cancelling_while_an_answer_arrives_closes_its_request_and_asks_nothing_more(
    cli: CliHarness, wires: Wires, who: str
) -> None:
    """By cause: the server sees the client leave, long before its own silence ends, and no other request comes."""
    look = (ToolCall("code__list_dir", {"path": "."}), ToolCall("code__list_dir", {"path": ".."}))
    journal = wires.server.state.journal
    child = {"instructions": "Look.", "model": WORKER, "allowed_tools": ["code.list_dir"]}
    before = [planner(ToolCall("agent__dispatch_worker", child))] if who == "gpt-5-mini" else []
    stall = StreamFault("stall", after_chunks=6, stall_seconds=60.0, match=Match(model=who, stream=True))
    wires.will(*before, stall, Reply(tool_calls=look, match=Match(model=who)))
    asking = cli.start("ask", "Look.", "--model", PLANNER, "--json")
    until(lambda: len(journal.records()) == len(before) and journal.in_flight == 1, "it streams", cli.logs)

    assert cli.run("tasks", "cancel", cli.task_id()).returncode == 0

    cancelled_s = time.monotonic()
    until(lambda: journal.in_flight == 0, "the request is closed", cli.logs)
    assert time.monotonic() - cancelled_s < 1
    out, _ = asking.communicate(timeout=30)
    assert json.loads(out)["status"] == "cancelled"
    records = journal.records()
    assert len(records) == len(before) + 1
    assert not records[-1].completed
    runs = cli.json("runs", "list", "--task", json.loads(out)["id"])
    assert {run["status"] for run in runs} == {"cancelled"}
