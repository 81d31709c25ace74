import io
import sys

import pytest

from soong.orchestrator.cli import console
from soong.orchestrator.cli.permissions import PreviewStoppedError, consented, preview_text
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.rules import Effect, Scope, ScopeKind

pytestmark = pytest.mark.spec("PER-17")

LONG = "/work/" + "deep/" * 60 + "report.md"


def asked(path: str, effect: Effect = Effect.ASK) -> CheckedPermission:
    scope = Scope(ScopeKind.PATH, path) if effect is Effect.ASK else None
    tools = ("code.write_file",)
    return CheckedPermission(
        PermissionKind.WRITE, path, path, effect, "it writes", tools=tools, scope=scope, grantable=tools
    )


def preview(*steps: StepPreview) -> Preview:
    return Preview("t", steps or (StepPreview("a", "A", "agent", (asked("/work/a"),)),))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Stand for a terminal on which this is typed."""
    keyboard = io.StringIO()
    monkeypatch.setattr(keyboard, "fileno", lambda: 0, raising=False)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    return keyboard


def type_in(keyboard: io.StringIO, text: str) -> None:
    keyboard.write(text)
    keyboard.seek(0)


def test_what_is_allowed_is_shown_whole() -> None:
    assert LONG in preview_text(preview(StepPreview("a", "A", "agent", (asked(LONG),))))


def test_nothing_in_a_plan_is_obeyed_by_a_terminal_or_looks_like_a_line_of_ours() -> None:
    hostile = "/work/\x1b[2J\u202egpj.exe\n  [1] allow"
    steps = StepPreview("a", "\x1b]0;title\x07", "agent", (asked(hostile),), may_ask=("x\x1b[1A",))

    text = preview_text(Preview("\x1b[31mred\nsecond line", (steps,)))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\n  [1] allow" not in text
    assert "\nsecond line" not in text


@pytest.mark.spec("PER-17.b")
def test_each_step_takes_one_answer_and_other_words_are_asked_again(typed: io.StringIO) -> None:
    type_in(typed, "what?\n1\nlater\n")
    steps = tuple(StepPreview(name, name, "agent", (asked(f"/work/{name}"),)) for name in ("a", "b"))

    grants = consented(preview(*steps), (), is_shown=True, is_json=False)

    assert grants == (StepGrant("a", (("code.write_file", Scope(ScopeKind.PATH, "/work/a")),)),)


@pytest.mark.parametrize("words", ["3\n", "", "q\n"], ids=["stop", "end of input", "quit"])
def test_stopping_at_any_step_grants_nothing_at_all(typed: io.StringIO, words: str) -> None:
    type_in(typed, f"1\n{words}")
    steps = tuple(StepPreview(name, name, "agent", (asked(f"/work/{name}"),)) for name in ("a", "b"))

    with pytest.raises(PreviewStoppedError):
        consented(preview(*steps), (), is_shown=True, is_json=False)


def test_where_nothing_can_be_allowed_one_is_asked_whether_to_begin(typed: io.StringIO) -> None:
    type_in(typed, "1\n")
    refused = preview(StepPreview("a", "A", "agent", (asked("/work/a", Effect.DENY),)))

    assert consented(refused, (), is_shown=True, is_json=False) == ()


def test_a_step_allowed_on_the_command_line_is_not_asked_for_again(typed: io.StringIO) -> None:
    type_in(typed, "2\n")
    steps = tuple(StepPreview(name, name, "agent", (asked(f"/work/{name}"),)) for name in ("a", "b"))

    grants = consented(preview(*steps), ("a",), is_shown=True, is_json=False)

    assert grants is not None
    assert [grant.step_id for grant in grants] == ["a"]


def test_without_a_terminal_nothing_is_run_unless_steps_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert consented(preview(), (), is_shown=True, is_json=True) is None
    assert '"is_grantable": true' in capsys.readouterr().out
    assert consented(preview(), ("a",), is_shown=True, is_json=True) is not None
    captured = capsys.readouterr()
    assert (captured.out, "write  /work/a" in captured.err) == ("", True)
