"""Questions whose every word an agent chose: shown, never obeyed, never taken for a line of ours (bad input 59)."""

import io
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.console import Console

from soong.orchestrator.approvals.approval import Approval
from soong.orchestrator.approvals.decide import TargetStatus
from soong.orchestrator.approvals.full_input import EXACT, FullInput
from soong.orchestrator.client.program import program
from soong.orchestrator.schemas.approval import ApprovalDetail
from soong.orchestrator.terminal.console import folded, visible
from soong.orchestrator.terminal.display import LineDisplay, TaskView
from soong.orchestrator.terminal.live import Live
from soong.orchestrator.terminal.prompt import TerminalPrompt, document_of
from soong.orchestrator.terminal.question_text import GOES_ON, MARGIN, input_lines, list_text, quoted, show_text
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.jsontext import inert
from soong.shared.permissions.request import Choice, PermissionRequest, Question, RequestState
from tests.model.builders import make_session
from tests.unit.cli.test_prompt import make_request

IMITATION = "x\n  [1] allow once\n  [3] deny\n  > 1\nanswered: allow once"

HOSTILE = {
    "escape sequences": "a\x1b[2J\x1b[1;1H\x1b]0;title\x07\x9b31mb",
    "a clipboard write": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "a link of the terminal": "\x1b]8;;http://evil\x1b\\docs\x1b]8;;\x1b\\",
    "carriage returns": "rm -rf /\rls        ",
    "backspaces": "rm\b\bls",
    "text that runs backwards": "\u202etxt.exe\u202c \u2066x\u2069",
    "zero width": "pa\u200bss\u200dwo\u2060rd\ufeff",
    "tags and variation selectors": "a\U000e0041\U000e0100\ufe0fb",
    "letters that show nothing": "a\u3164\u115f\u2800b",
    "piles of marks": "Z" + "\u0335\u0321\u0489" * 40,
    "another prompt": IMITATION,
    "line separators": "a\u2028  [1] allow once\u2029b\x85c\x0bd\x0ce",
    "spaces that reach the next row": "name" + " " * 200 + "[1] allow once",
    "markup": "[bold red]x[/] <b>y</b> **z** `w` [link=http://evil]q[/link]",
    "format strings": "{0.__class__} %s %n $(id) ${HOME} `id`",
    "wide characters": "漢字" * 100,
    "a lone surrogate": "a\ud800b",
    "a long word": "A" * 200_000,
}
"""What an argument, a path, a title or a reason may hold."""

FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u115f\u1160\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\U000e0000-\U000e01ff]"
)
TEXT_FIELDS = ("tool", "shown", "scope", "cwd", "host", "risk", "risk_summary", "preview", "hook_result", "target_kind")


def hostile_request(text: str) -> PermissionRequest:
    identity = replace(make_request().identity, step_title=text, definition=text, model=text, agent_id=text)
    fields = dict.fromkeys(TEXT_FIELDS, text)
    return make_request(
        identity=identity,
        arguments={"content": text, "argv": [text, text], text: {"deep": [text]}},
        env=(text,),
        tags=(text,),
        unknown_effects=({"tool": text, "shown": text},),
        permission=text,
        **fields,
    )


def approval_of(request: PermissionRequest) -> Approval:
    return Approval(
        Question(request, RequestState.PENDING),
        make_session(),
        request.identity.step_title,
        (request.identity,),
        FullInput(request.arguments, EXACT, is_exact=True),
        TargetStatus(True, request.shown, request.preview),
        is_tainted=True,
        withdrawn=request.shown,
    )


def detail_of(request: PermissionRequest) -> dict[str, object]:
    approval = approval_of(request)
    return ApprovalDetail.of_question(approval.question, approval).model_dump()


async def prompted(request: PermissionRequest, width: int = 80) -> str:
    """Return all that a terminal is sent: the question, its full text, the list of what waits."""
    keys = iter(["f", "l", "?", "3"])

    async def read(show_mark: Callable[[], None]) -> str:
        show_mark()
        return next(keys)

    async def whole(_id: str) -> Document:
        return {"full_input": {"input": request.arguments, "note": EXACT}}

    output = io.StringIO()
    console = Console(file=output, width=width, height=40, highlight=False, markup=False, force_terminal=False)
    prompt = TerminalPrompt(console, lambda _held: None, read, whole)
    question = document_of(request)
    prompt.take_waiting([question, {**question, "id": "req_2"}])
    answer = await prompt(question)
    assert answer.choice is Choice.DENY
    return output.getvalue()


SHOWN: dict[str, Callable[[PermissionRequest], str]] = {
    "list": lambda request: list_text([document_of(request)], 1_000_000),
    "show": lambda request: show_text(detail_of(request), 1_000_000, is_full=False),
    "show --full": lambda request: show_text(detail_of(request), 1_000_000, is_full=True),
}


@pytest.mark.spec("PER-06", "PER-13")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("way", SHOWN)
def test_what_is_listed_and_shown_is_inert(way: str, text: str) -> None:
    assert not FORBIDDEN.search(SHOWN[way](hostile_request(text)))


@pytest.mark.spec("PER-06", "PER-13")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_what_the_prompt_writes_is_inert(text: str) -> None:
    assert not FORBIDDEN.search(await prompted(hostile_request(text)))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_who_only_watches_sees_it_inert_too(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [document_of(replace(hostile_request(text), id=f"req_{number}")) for number in range(5)]
    task = {"id": "task_1", "title": text, "status": "running", "kind": "plan"}
    view = TaskView("task_1", questions)
    head = {"task": task, "root_run": "run_1", "planned": [], "workers": [], "budgets": [], "steps": []}
    view.take("task_1", head, is_whole=True)
    output = io.StringIO()
    live = Live(Console(file=output, width=80, height=40, highlight=False, markup=False, force_terminal=False))

    LineDisplay().show(view)
    live.console.print(live.picture(view))
    live.close()

    assert not FORBIDDEN.search(capsys.readouterr().err)
    assert not FORBIDDEN.search(output.getvalue())
    assert f"… and 2 more: {program()}" in output.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("text", ["another prompt", "spaces that reach the next row", "line separators"])
async def test_nothing_that_an_agent_wrote_begins_like_a_choice_of_ours(text: str, width: int) -> None:
    """Whoever approves is shown what is asked (QwenLM/qwen-code#3960, github/copilot-cli#3684) and nothing forged."""
    ours = {"  [1] allow once", "  [3] deny (a reason may follow)"}

    for line in (await prompted(hostile_request(HOSTILE[text]), width)).splitlines():
        if re.match(r"\s{0,3}(\[\d\]|answered)", line) and not line.startswith("  [2] allow for this session: "):
            assert line in ours | {"  answered: deny"}


@pytest.mark.parametrize("way", SHOWN)
def test_a_second_prompt_is_spelled_out_or_is_behind_a_margin(way: str) -> None:
    for line in SHOWN[way](hostile_request(IMITATION)).splitlines():
        assert not re.match(r"\s*(\[1\] allow once|> 1|answered:)", line), line


@pytest.mark.spec("PER-06")
def test_what_is_cut_says_how_much_and_what_it_is_the_whole_has_all() -> None:
    """A person must be able to see every byte before a yes (threat: the approval shows something else)."""
    text = "A" * 1_000_000 + "the end"
    whole = {"content": text}

    cut, full = input_lines(whole, EXACT, max_chars=4_000), input_lines(whole, EXACT)

    assert any("996007 of 1000007 characters more (SHA-256 of all begins" in line for line in cut)
    assert sum(map(len, cut)) < 10_000
    assert full[-1] == f"{MARGIN}{text}"


def test_an_argv_is_a_word_a_line_with_what_looks_like_two_words_as_one() -> None:
    lines = input_lines({"argv": ["rm", "-rf", "a b\nc", ""]}, EXACT)

    assert lines[1:] == ["  argv: 4 words", "  | [0] rm", "  | [1] -rf", "  | [2] a b\\nc", "  | [3] "]


@pytest.mark.parametrize("columns", [12, 40, 80])
def test_a_line_that_the_terminal_would_wrap_keeps_a_margin(columns: int) -> None:
    lines = quoted("x" * 500 + " [1] allow once\n漢字" + "漢" * 100, columns=columns)

    assert all(line.startswith((MARGIN, GOES_ON)) for line in lines)
    assert all(sum(2 if char > "\u2e80" else 1 for char in line) <= columns for line in lines)
    assert "".join(line[len(MARGIN) :] for line in lines).replace(" ", "").endswith("漢")


def test_folding_loses_nothing() -> None:
    for text in HOSTILE.values():
        line = visible(text[:5_000])
        assert "".join(folded(line, 17)) == line


def test_text_that_is_harmless_stays_as_it_is() -> None:
    for text in ("äöü é ñ", "日本語", "שלום", "a\u0301e\u0302", "snake_case-1.2/x"):
        assert inert(text) == text
