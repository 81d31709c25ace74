"""`soong approvals` beside `soong run`: real processes, a real terminal, a service that comes and goes."""

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.system.cli_scene import CONSOLE_SCRIPT, LIMIT_S, CliHarness, Terminal, scene, until
from tests.system.test_acp_child import questions

pytestmark = pytest.mark.timeout(400)

_SHOWN_STEP = re.compile(r"\n  step\s+(\w+)")

THREE = """
title: Three things to ask
steps:
  - id: mend
    title: Mend the read-me
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs:
      calls: [{call: code.write_file, with: {path: README.md, content: "# Title\\n\\nbetter\\n", overwrite: true}}]
  - id: note
    title: "Keep a note\\n  [1] allow once"
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: notes/today.txt, content: "a note\\n"}}]}
  - id: list
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: lists/one.txt, content: "one\\n"}}]}
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "README.md").write_text("# Title\n\ngood\n")
        one.environment.update(COLUMNS="160", LINES="60")
        yield one


def waiting(cli: CliHarness, count: int) -> dict[str, str]:
    """Wait until so many questions wait unanswered; return their ids by step."""
    found: dict[str, str] = {}

    def are_there() -> bool:
        found.clear()
        found.update({one.identity.step_key.partition("/")[2]: one.id for one in questions(cli)})
        return len(found) == count

    until(are_there, f"{count} questions wait", cli.logs)
    return found


def asking(cli: CliHarness) -> tuple[Terminal, dict[str, str]]:
    """Run the plan in a terminal; return it once it shows a question and three wait, and their ids by step."""
    terminal = Terminal(cli, "run", cli.plan(THREE))
    terminal.expect("[1] allow once")
    ids = waiting(cli, 3)
    list_until(terminal, "3 questions wait")
    until(terminal.is_at_mark, "the prompt after the list", lambda: terminal.shown)  # it discards what is typed before
    return terminal, ids


def shown_step(terminal: Terminal) -> str:
    """Return the step whose question the terminal showed last: of several asked at once any may be the first."""
    terminal.read()
    steps = [str(found[1]) for found in _SHOWN_STEP.finditer(terminal.text)]
    return steps[-1] if steps else ""


def show(terminal: Terminal, step: str) -> None:
    """Press `n` until the question of that step is shown."""
    for _ in range(6):
        before = shown_step(terminal)
        if before == step:
            return
        terminal.answer("n\n")
        until(lambda before=before: shown_step(terminal) != before, "the next question is shown")  # type: ignore[misc]  # bound now
    raise AssertionError(f"the question of {step!r} was not shown\n{terminal.shown}")


def list_until(terminal: Terminal, text: str) -> None:
    """Press `l` until the list says so: it tells what was waiting when the terminal looked last."""
    press_until(terminal, "l\n", text)


def press_until(terminal: Terminal, keys: str, text: str) -> None:
    """Press keys at one prompt after another until that is shown."""
    seen = len(terminal.shown)
    for _ in range(60):
        terminal.answer(keys)
        until(lambda: terminal.is_at_mark() or text in terminal.shown[seen:], "a prompt", lambda: terminal.shown)
        if text in terminal.shown[seen:]:
            return
    raise AssertionError(f"{text!r} was not shown\n{terminal.shown}")


@pytest.mark.spec("PER-06", "PER-13.c", "PER-14", "PER-15")
def test_a_second_terminal_answers_what_the_first_is_shown(cli: CliHarness) -> None:
    """Any client of the session can answer (openai/codex#45167); what was answered goes (oh-my-openagent#4447)."""
    first, ids = asking(cli)
    show(first, "mend")

    shown = cli.run("approvals", "show", ids["mend"][-8:]).stdout
    assert "under" in shown
    assert "  | -good\n  | +better\n" in shown
    assert "the target is as it was when the question was asked" in shown
    assert "  note  Keep a note\\n  [1] allow once  in task_" in cli.run("approvals", "list").stdout.replace("step", "")

    denied = cli.run("approvals", "deny", ids["mend"], "--reason", "leave it")
    assert (denied.returncode, "denied by local through soong approvals: leave it" in denied.stderr) == (0, True)
    first.expect("was settled elsewhere: denied by local through soong approvals: leave it")
    assert cli.run("approvals", "allow", ids["mend"]).returncode == 1

    allowed = cli.run("approvals", "allow", ids["list"])
    assert (allowed.returncode, "allowed once by local" in allowed.stderr) == (0, True)
    until((cli.folder / "lists" / "one.txt").exists, "the file is written", cli.logs)

    until(lambda: shown_step(first) == "note", "the last is shown", cli.logs)
    first.answer("3 nor that\n")
    assert first.wait() == 3, first.shown
    assert "mend: code.write_file: denied by local through soong approvals: leave it" in first.shown
    assert "note: code.write_file: denied by local through a terminal: nor that" in first.shown
    assert (cli.folder / "README.md").read_text() == "# Title\n\ngood\n"
    closed = cli.json("approvals", "list", "--all")
    assert sorted(one["answer"]["channel"] for one in closed) == ["cli", "cli", "terminal"]


@pytest.mark.spec("PER-13", "PER-15")
def test_ctrl_c_with_three_open_questions_keeps_them_and_an_answer_while_nothing_runs_counts_later(
    cli: CliHarness,
) -> None:
    """Leaving decides nothing (MoonshotAI/kimi-cli#1823), and what was shown is what is written: or nothing is."""
    terminal, ids = asking(cli)

    terminal.press("\x03")

    assert terminal.wait() == 130, terminal.shown
    assert "3 questions stay open" in terminal.shown
    cli.assert_nothing_left()
    assert waiting(cli, 3) == ids
    for step, verb in (("mend", "allow"), ("note", "allow"), ("list", "deny")):
        done = cli.run("approvals", verb, ids[step], "--wait", "0")
        assert (done.returncode, "no orchestrator has acted on it yet" in done.stderr) == (0, True)
    (cli.folder / "README.md").write_text("# Changed since\n")
    assert "CHANGED: the target has changed" in cli.run("approvals", "show", ids["mend"]).stdout

    report = cli.json("resume", cli.task_id())

    assert [one["sentence"] for one in report["denials"]] == ["denied by local through soong approvals"]
    assert [(one["step"], one["error"]) for one in report["undone"]] == [("mend", "path_conflict")]
    assert (cli.folder / "README.md").read_text() == "# Changed since\n"
    assert (cli.folder / "notes" / "today.txt").exists()
    assert not (cli.folder / "lists").exists()
    cli.assert_nothing_left()


@pytest.mark.spec("PER-13")
def test_the_end_of_input_answers_nothing_and_a_watching_terminal_answers_and_leaves(cli: CliHarness) -> None:
    run, _ = asking(cli)
    press_until(run, "\x04", "standard input ended: nothing more is answered here")
    run.expect("3 questions stay open")

    watching = Terminal(cli, "approvals", "watch")
    watching.expect("[1] allow once")
    list_until(watching, "3 questions wait")
    first = _marked(watching)
    watching.answer("n\n")
    until(lambda: _marked(watching) != first, "another question is shown", lambda: watching.shown)
    second = _marked(watching)
    watching.answer("1\n")
    watching.expect("2 questions wait")
    watching.press("\x03")

    assert watching.wait() == 0, watching.shown
    assert "2 questions stay open" in watching.shown
    assert waiting(cli, 2).keys() == {"mend", "note", "list"} - {second}
    run.press("\x03")
    assert run.wait() == 130, run.shown


def _marked(terminal: Terminal) -> str:
    """Return the step of the question that a terminal shows last, once its list has come to it."""
    found: list[str] = []

    def is_shown() -> bool:
        terminal.read()
        found[:] = re.findall(r"> \w{8}  \d+ \w+  (\w+)", terminal.shown)
        return bool(found)

    until(is_shown, "a question is marked", lambda: terminal.shown)
    return found[-1]


def test_json_lines_are_streamed_until_interrupted(cli: CliHarness) -> None:
    """A run whose questions wait for an answer from elsewhere (`--approvals inbox`) needs no terminal.

    What is closed leaves the list, and its end is told (Agenta-AI/agenta#6823, librefang/librefang#1797).
    """
    (cli.folder / "out").mkdir()
    run = cli.start("run", cli.plan(THREE), "--approvals", "inbox")
    waiting(cli, 3)
    stream = subprocess.Popen(
        [*CONSOLE_SCRIPT, "approvals", "watch", "--json"],
        env=cli.env,
        cwd=cli.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stream.stdout is not None
    try:
        asked = [json.loads(stream.stdout.readline()) for _ in range(3)]
        cli.run("approvals", "deny", asked[0]["id"])
        closed = json.loads(stream.stdout.readline())
        stream.send_signal(2)

        assert stream.wait(LIMIT_S) == 0
        assert [one["event"] for one in asked] == ["asked"] * 3
        assert (closed["event"], closed["id"], closed["ending"]) == ("closed", asked[0]["id"], "denied")
    finally:
        stream.kill()
        stream.stdout.close()
    run.send_signal(2)
    _, told = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    assert re.search(r"questions wait for an answer: .*soong approvals watch", told)
