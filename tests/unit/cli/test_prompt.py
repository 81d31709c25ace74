"""The question at the terminal: shows who asks for what, obeys nothing that it shows, takes only clear answers."""

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from orchestrator.cli.console import inert, one_line, table
from orchestrator.cli.prompt import TerminalPrompt, choices, preview_of, question, read_decision
from shared.identity import Role, RunIdentity
from shared.permissions.request import Choice, PermissionDecision, PermissionRequest


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


def drawn(request: PermissionRequest) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False, markup=False, force_terminal=False)
    console.print(question(request, preview_of(request, room=40, width=156)))
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
    assert shown in drawn(make_request())


def test_a_session_grant_is_offered_only_with_a_scope() -> None:
    assert "[2] allow for this session: /project" in drawn(make_request())
    assert "[2]" not in drawn(make_request(scope=""))


def test_a_dangerous_call_says_so() -> None:
    assert "DANGEROUS" in drawn(make_request(is_dangerous=True, risk="critical"))


@pytest.mark.parametrize("field", ["shown", "tool", "scope", "cwd", "host", "risk_summary", "preview"])
def test_hostile_text_is_shown_and_not_obeyed(field: str) -> None:
    hostile = "a\x1b[2J\x1b[31m\u202egpj\x07\r[red]b[/red]"

    picture = drawn(make_request(**{field: hostile}))

    assert not {"\x1b", "\u202e", "\x07", "\r"} & set(picture)
    assert "\\x1b[2J" in picture
    assert "[red]b[/red]" in picture


def test_a_long_preview_is_cut_and_says_so() -> None:
    picture = drawn(make_request(preview="\n".join(f"line {number}" for number in range(100))))

    assert "line 39" in picture
    assert "line 40" not in picture
    assert "60 of 100 lines more" in picture
    assert "f shows them" in picture


async def test_what_was_cut_is_shown_when_asked_for() -> None:
    lines = iter(["f", "1"])

    async def read() -> str:
        return next(lines)

    output = io.StringIO()
    console = Console(file=output, height=30, width=100)
    prompt = TerminalPrompt(console, lambda _held: None, read)

    decision = await prompt(make_request(preview="\n".join(f"line {number}" for number in range(100))))

    assert decision.choice is Choice.ALLOW_ONCE
    assert "line 99" in output.getvalue()


def test_long_lines_count_as_the_rows_they_take() -> None:
    shown = preview_of(make_request(preview="x" * 1000 + "\nend"), room=10, width=100)

    assert shown[-1].plain == "… 1 of 2 lines more, 1004 characters in all: f shows them"


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
    assert read_decision(line, make_request()) == PermissionDecision(choice, reason)


@pytest.mark.parametrize("line", ["", " ", "4", "y", "n", "f", "yess", "allow_for"])
def test_what_is_no_clear_answer_is_none(line: str) -> None:
    assert read_decision(line, make_request()) is None


def test_a_session_grant_that_is_not_offered_cannot_be_answered() -> None:
    assert read_decision("2", make_request(scope="")) is None


async def test_it_asks_until_the_answer_is_clear() -> None:
    lines = iter(["", "what", "3 no"])
    held: list[bool] = []

    async def read() -> str:
        return next(lines)

    prompt = TerminalPrompt(Console(file=io.StringIO()), held.append, read)

    assert await prompt(make_request()) == PermissionDecision(Choice.DENY, "no")
    assert held == [True, False]


async def test_a_question_that_is_settled_elsewhere_gives_the_terminal_back() -> None:
    held: list[bool] = []
    prompt = TerminalPrompt(Console(file=io.StringIO()), held.append, _never())
    asking = asyncio.ensure_future(prompt(make_request()))
    await asyncio.sleep(0)

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    assert held == [True, False]


def test_text_for_a_terminal_spells_out_what_cannot_be_seen() -> None:
    assert inert("a\x1bb\u200bc\U000e0041") == "a\\x1bb\\u200bc\\U000e0041"
    assert inert("täst ✓ 日本") == "täst ✓ 日本"
    assert one_line("a\n  b\tc") == "a b c"


def test_a_table_lines_up_wide_characters() -> None:
    lines = table(("a", "b"), [("日本", "x"), ("ab", "y")]).splitlines()

    assert lines == ["a     b", "日本  x", "ab    y"]


def _never() -> Callable[[], "asyncio.Future[str]"]:
    return lambda: asyncio.get_running_loop().create_future()
