import asyncio
import io
import os
import pty
import threading
import time
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from soong.orchestrator.approvals.full_input import EXACT
from soong.orchestrator.terminal.console import table
from soong.orchestrator.terminal.prompt import (
    Keyboard,
    ReadLine,
    TerminalPrompt,
    choices,
    document_of,
    picture,
    read_answer,
)
from soong.orchestrator.terminal.responder import ResponderClosedError, SkipQuestionError, TypedAnswer
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.errors import UnavailableError
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.permissions.request import Choice, PermissionRequest
from tests.model.clock import FakeClock
from tests.waiting import others_run


def make_request(**overrides: object) -> PermissionRequest:
    identity = RunIdentity(
        session_id="sess_1",
        run_id="run_child",
        agent_id="agent_child",
        role=Role.WORKER,
        definition="default_worker_agent",
        parent_run_id="run_parent",
        parent_agent_id="agent_parent",
        task_id="task_1",
        step_key="task_1/report",
        step_title="Write the report",
    )
    fields: dict[str, object] = {
        "id": "req_1",
        "identity": identity,
        "tool_call_id": "call_1",
        "tool": "code.write_file",
        "permission": "write",
        "tags": ("code",),
        "arguments": {"path": "report.md"},
        "input_digest": "d",
        "target_kind": "path",
        "scope": "/project",
        "shown": "/project/report.md",
        "precondition": "absent",
        "cwd": "/project",
        "host": "",
        "env": (),
        "is_dangerous": False,
        "risk": "write",
        "risk_summary": "it writes",
        "preview": "+ a line\n- another",
        "hook_result": "none",
        "suggested": Choice.ALLOW_ONCE,
        "created_us": 1,
    }
    return PermissionRequest(**{**fields, **overrides})  # type: ignore[arg-type]  # a test's own overrides


def make_question(**overrides: object) -> Document:
    return document_of(make_request(**overrides))


def drawn(request: Document) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False, markup=False, force_terminal=False)
    console.print(picture(request, room=40, columns=160))
    console.print(choices(request))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.spec("PER-06")
@pytest.mark.parametrize(
    "shown",
    [
        "worker agent agent_child, run run_child",
        "agent agent_parent, run run_parent",
        "report  Write the report",
        "code.write_file (write, code)",
        "/project/report.md",
        "write: it writes",
        "+ a line",
    ],
)
def test_the_question_shows_who_asks_and_for_what(shown: str) -> None:
    assert shown in drawn(make_question())


def test_a_session_grant_is_offered_and_answered_only_with_a_scope_and_a_dangerous_call_says_so() -> None:
    assert "[2] allow for this session: /project" in drawn(make_question())
    assert "[2]" not in drawn(make_question(scope=""))

    assert read_answer("2", make_question(scope="")) is None

    assert "DANGEROUS" in drawn(make_question(is_dangerous=True, risk="critical"))


async def test_what_was_cut_is_shown_when_asked_for() -> None:
    lines = iter(["f", "1"])

    async def read(show_mark: Callable[[], None]) -> str:
        show_mark()
        return next(lines)

    output = io.StringIO()
    console = Console(file=output, height=30, width=100)
    prompt = TerminalPrompt(console, lambda _held: None, read)

    decision = await prompt(make_question(preview="\n".join(f"line {number}" for number in range(100))))

    assert decision.choice is Choice.ALLOW_ONCE
    assert "line 99" in output.getvalue()


def test_long_lines_count_as_the_rows_they_take() -> None:
    shown = picture(make_question(preview="x" * 1000 + "\nend"), room=10, columns=100).plain

    assert shown.splitlines()[-1] == "  … 2 of 12 lines more, 1004 characters in all: f shows them"


@pytest.mark.spec("PER-13.k")
@pytest.mark.parametrize(
    ("line", "choice", "reason"),
    [
        ("1", Choice.ALLOW_ONCE, ""),
        ("once", Choice.ALLOW_ONCE, ""),
        ("2", Choice.ALLOW_FOR_SESSION, ""),
        ("3", Choice.DENY, ""),
        ("d not into my project", Choice.DENY, "not into my project"),
        ("NO", Choice.DENY, ""),
    ],
)
def test_an_answer_is_read_with_its_reason(line: str, choice: Choice, reason: str) -> None:
    assert read_answer(line, make_question()) == TypedAnswer(choice, reason)


@pytest.mark.spec("PER-13.k")
async def test_it_asks_until_the_answer_is_clear() -> None:
    lines = iter(["", "what", "3 no"])
    held: list[bool] = []

    async def read(show_mark: Callable[[], None]) -> str:
        show_mark()
        return next(lines)

    prompt = TerminalPrompt(Console(file=io.StringIO()), held.append, read)

    assert await prompt(make_question()) == TypedAnswer(Choice.DENY, "no")
    assert held == [True, False]


async def test_a_question_that_is_settled_elsewhere_gives_the_terminal_back() -> None:
    held: list[bool] = []
    prompt = TerminalPrompt(Console(file=io.StringIO()), held.append, _never())
    asking = asyncio.ensure_future(prompt(make_question()))
    await others_run()

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    assert held == [True, False]


def test_a_table_lines_up_wide_characters() -> None:
    lines = table(("a", "b"), [("日本", "x"), ("ab", "y")]).splitlines()

    assert lines == ["a     b", "日本  x", "ab    y"]


def typed(*lines: str) -> ReadLine:
    """Return a keyboard at which these lines are typed, and then nothing more."""
    left = iter(lines)

    async def read(show_mark: Callable[[], None]) -> str:
        show_mark()
        line = next(left, None)
        if line is None:
            raise ResponderClosedError("standard input ended")
        return line

    return read


def prompt_of(read: ReadLine, width: int = 100) -> tuple[TerminalPrompt, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, width=width, height=40, highlight=False, markup=False, force_terminal=False)
    return TerminalPrompt(console, lambda _held: None, read, now_s=lambda: FakeClock().now_us() / 1e6), output


THREE = [make_question(id=f"req_{name * 8}", shown=f"/project/{name}.md") for name in "abc"]


@pytest.mark.spec("PER-06", "PER-13")
async def test_of_several_questions_the_one_that_is_shown_is_marked_in_the_list() -> None:
    """Who asks and for what is seen of each that waits (anomalyco/opencode#15332, openai/codex#45167)."""
    prompt, output = prompt_of(typed("1"))
    prompt.take_waiting(THREE)

    await prompt(THREE[1])

    lines = output.getvalue().splitlines()
    assert lines[0] == "3 questions wait"
    assert [line[:10] for line in lines[1:4]] == ["  aaaaaaaa", "> bbbbbbbb", "  cccccccc"]
    assert all("report  code.write_file  /project/" in line for line in lines[1:4])
    assert "f full  l list  n next  ? help" in output.getvalue()


async def test_a_single_question_has_no_list_and_no_next() -> None:
    prompt, output = prompt_of(typed("n", "1"))
    prompt.take_waiting(THREE[:1])

    await prompt(THREE[0])

    assert "wait" not in output.getvalue().splitlines()[0]
    assert "n next" not in output.getvalue()
    assert "no other question waits" in output.getvalue()


@pytest.mark.spec("PER-13")
@pytest.mark.parametrize("key", ["f", "l", "?", "", " ", "4", "y", "n", "yess", "yes please", "allow_for"])
async def test_keys_that_look_and_slips_answer_nothing(key: str) -> None:
    prompt, _ = prompt_of(typed(key))

    with pytest.raises(ResponderClosedError):
        await prompt(THREE[0])


async def test_n_asks_for_another_question_first() -> None:
    prompt, _ = prompt_of(typed("n"))
    prompt.take_waiting(THREE)

    with pytest.raises(SkipQuestionError):
        await prompt(THREE[0])


@pytest.mark.parametrize("waiting", [4, 60])
async def test_the_list_above_a_question_is_short_and_l_shows_all_of_it(waiting: int) -> None:
    many = [make_question(id=f"req_{number:08}") for number in range(waiting)]
    prompt, output = prompt_of(typed("l", "1"))
    prompt.take_waiting(many)

    await prompt(many[0])

    above, _, below = output.getvalue().partition("asks for permission")
    assert above.count("code.write_file") == min(waiting, 5) + 1
    assert ("more; l lists them" in above) is (waiting > 5)
    assert below.count("/project/report.md") == waiting + 1


@pytest.mark.parametrize("width", [20, 40, 59, 60, 200])
async def test_every_line_fits_the_terminal_and_every_fact_is_there(width: int) -> None:
    prompt, output = prompt_of(typed("f", "l", "1"), width)
    prompt.take_waiting(THREE)

    await prompt(make_question(id=THREE[0]["id"], scope="/a/very/long/folder/name/" * 3, is_dangerous=True))

    shown = output.getvalue()
    squeezed = "".join(char for char in shown if char.isalnum() or char in "/_.")
    assert max(map(cell_len, shown.splitlines())) <= max(width, 40)
    assert all(word in squeezed for word in ("agent_child", "run_parent", "DANGEROUS", "/project/report.md"))


async def test_the_whole_input_is_shown_on_demand_and_says_what_it_is() -> None:
    async def whole(_id: str) -> Document:
        return {"full_input": {"input": {"content": "one\ntwo"}, "note": EXACT}}

    prompt, output = prompt_of(typed("f", "1"))
    prompt.detail = whole

    await prompt(make_question())

    assert EXACT in output.getvalue()
    assert "  content: 7 characters, 2 lines, no line break at the end\n  | one\n  | two\n" in output.getvalue()


async def test_a_database_that_is_away_leaves_the_question_standing() -> None:
    async def whole(_id: str) -> Document:
        raise UnavailableError("the database does not answer")

    prompt, output = prompt_of(typed("f", "3 too much"))
    prompt.detail = whole

    assert await prompt(make_question()) == TypedAnswer(Choice.DENY, "too much")
    assert "cannot be read now: the database does not answer" in output.getvalue()


async def test_the_end_of_the_input_is_no_answer() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    try:
        prompt, _ = prompt_of(Keyboard(reading).line)
        with pytest.raises(ResponderClosedError, match="standard input ended"):
            await prompt(make_question())
    finally:
        os.close(reading)


async def test_what_is_typed_before_the_mark_answers_nothing_and_what_is_typed_at_it_always_counts() -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"1\n")

    def answer_at_once() -> None:
        os.write(ours, b"3 not this\n")

    try:
        async with asyncio.timeout(5):
            assert await Keyboard(theirs).line(answer_at_once) == "3 not this"
    finally:
        os.close(ours)
        os.close(theirs)


async def test_a_ctrl_c_that_takes_a_typed_line_back_does_not_stop_everything() -> None:
    """The terminal throws away what was typed before a Ctrl-C, also what we were told of already and had not read."""
    loop = asyncio.get_running_loop()
    ours, theirs = pty.openpty()
    rescue = threading.Timer(5.0, os.write, (ours, b"too late\n"))
    rescue.start()
    line = loop.create_task(Keyboard(theirs).line(lambda: None))
    await asyncio.sleep(0.05)

    def press(keys: bytes, *then: bytes) -> None:
        os.write(ours, keys)
        time.sleep(0.1)  # until the terminal has them: the loop finds them at its next look
        if then:
            loop.call_soon(lambda: press(*then))  # after that look, and before what it found is read

    loop.call_soon(lambda: press(b"l\n", b"\x03"))
    await asyncio.sleep(0.05)
    os.write(ours, b"1\n")

    try:
        assert await line == "1"
    finally:
        rescue.cancel()
        os.close(ours)
        os.close(theirs)


def _never() -> ReadLine:
    return lambda _show_mark: asyncio.get_running_loop().create_future()


@pytest.mark.spec("MCP-01.d", "PER-13")
def test_a_question_of_an_mcp_server_says_what_its_answers_do() -> None:
    request = make_question(tool="mcp.shop.elicitation/create", scope="", preview="| Which size?")

    offered = choices(request).plain
    answer = read_answer("1 size=7 colour=red", request)

    assert "[1] accept (the words after it are the answer)" in offered
    assert "[3] decline" in offered
    assert "session" not in offered
    assert answer == TypedAnswer(Choice.ALLOW_ONCE, "size=7 colour=red")
