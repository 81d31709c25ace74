"""``soong permissions``, and the preview of what a plan asks for."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from soong.orchestrator.cli.permissions import PreviewStoppedError, app, consented, preview_text
from soong.orchestrator.terminal import console
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.rules import Effect, Scope, ScopeKind
from soong.shared.tools import permission_check as risk

CONFIG = """
[[permission.rules]]
effect = "deny"
tools = "code.*"
scope = "{project}/secret"

[[permission.rules]]
effect = "ask"
tools = "code.read_file"
scope = "{project}/notes"

[[permission.rules]]
effect = "allow"
tools = "code.write_file"
scope = "{project}/out"

[network]
mode = "allowlist"
hosts = ["*.example.org"]
allowed = ["api.example.org"]

[paths]
sensitive = ["*.secret"]
allowed_write_roots = ["{project}/../shared"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the current folder, and a home with a configuration."""
    folder = tmp_path / "project"
    folder.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG.format(project=folder), encoding="utf-8")
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home))
    monkeypatch.chdir(folder)
    return folder


def said(*words: str) -> str:
    outcome = CliRunner().invoke(app, ["explain", *words])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.output


def document(*words: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(said(*words, "--json"))
    return value


@pytest.mark.spec("PER-10.e")
def test_the_effective_policy_is_shown_in_the_order_in_which_it_decides(project: Path) -> None:
    order = [(line["effect"], line["what"], line["source"]) for line in document()["order"]]

    effects = [effect for effect, _, _ in order]
    assert effects == sorted(effects, key=["deny", "ask", "allow"].index)
    assert [source for _, _, source in order[:3]] == ["runtime", "sandbox", "sandbox"]
    for line in (
        ("deny", f"code.*:{project}/secret", "config.toml"),
        ("deny", "a host that is not listed; listed: *.example.org, api.example.org", "config.toml"),
        ("deny", "what is dangerous: tools.dangerous of config.toml is off", "runtime"),
        ("ask", f"code.read_file:{project}/notes", "config.toml"),
        ("ask", "when it writes", "runtime"),
        ("allow", f"code.write_file:{project}/out", "config.toml"),
        ("allow", "*:host:api.example.org", "config.toml"),
    ):
        assert line in order


@pytest.mark.spec("PER-10.b", "PER-10.d", "PER-10.e")
def test_what_skills_ask_for_is_part_of_the_policy_and_decides_nothing(project: Path) -> None:
    without = document("--tool", "code.write_file", "path=a.md", "content=x")
    skill = project.parent / "home" / "skills" / "notes" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    asked = "allowed-tools: [code.write_file]\npermissions: [code.write_file:/x]"
    skill.write_text(f"---\nname: notes\ndescription: d\n{asked}\n---\nWrite it.\n", encoding="utf-8")

    shown = document("--tool", "code.write_file", "path=a.md", "content=x")

    declared = {"skill": "notes", "level": "user", "allowed_tools": ["code.write_file"]}
    assert shown["skills"] == [{**declared, "permissions": ["code.write_file:/x"]}]
    assert (shown["order"], shown["call"]) == (without["order"], without["call"])
    assert "notes (user): code.write_file, code.write_file:/x; this grants nothing" in said()


@pytest.mark.spec("PER-10.e", "FS-06", "FS-07", "FS-09")
def test_roots_patterns_protected_names_and_the_network_are_shown(project: Path) -> None:
    shown = document()

    assert shown["project"] == str(project)
    assert str(project.parent / "shared") in shown["write_roots"]
    assert {".env", "*.secret"} <= set(shown["sensitive"])
    assert any("hooks" in name for name in shown["protected"])
    assert shown["network"] == {
        "mode": "allowlist",
        "hosts": ["*.example.org"],
        "allowed": ["api.example.org"],
        "each_time": False,
        "source": "config.toml",
    }
    assert (shown["v"], shown["mode"], shown["dangerous"]) == (1, "auto", False)


@pytest.mark.spec("PER-10.e")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--tool", "code.write_file", "path=out/a.md", "content=x"],
            ("allow", "policy", "allow code.write_file:{project}/out", "config.toml", None),
        ),
        (["--tool", "code.write_file", "path=b.md", "content=x"], ("ask", "policy", "default", "runtime", None)),
        (
            ["--tool", "code.write_file", "path=b.md", "content=x", "--allow", "code.*:{project}/b.md"],
            ("allow", "policy", "allow code.*:{project}/b.md", "--allow", None),
        ),
        (
            ["--tool", "code.write_file", "path=secret/a", "content=x", "--allow", "code.*:{project}/secret"],
            ("deny", "policy", "deny code.*:{project}/secret", "config.toml", "permission_denied"),
        ),
        (
            ["--tool", "code.write_file", "path=.git/config", "content=x", "--allow", "code.*:{project}/.git"],
            ("deny", "sandbox", "path_protected", "sandbox", "path_protected"),
        ),
        (
            ["--tool", "code.read_file", "path=/proc/self/environ"],
            ("deny", "sandbox", "not_regular_file", "sandbox", "not_regular_file"),
        ),
        (["--tool", "code.read_file", "--args", '{"path": ".env"}'], ("ask", "policy", "default", "runtime", None)),
        (["--tool", "agent.task_get"], ("allow", "policy", "default", "runtime", None)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_call_is_explained_by_what_decides_on_it(
    project: Path, words: list[str], expected: tuple[str | None, ...]
) -> None:
    (project / ".env").write_text("", encoding="utf-8")

    call = document(*(word.format(project=project) if word.startswith("code.*") else word for word in words))["call"]

    found = (call["effect"], call["layer"], call["rule"], call["source"], call["error"])
    assert found == tuple(None if each is None else each.format(project=project) for each in expected)
    assert not (project / "out").exists()
    assert not (project / "b.md").exists()


@pytest.mark.spec("PER-08", "PER-10")
def test_what_a_session_grant_would_cover_is_shown(project: Path) -> None:
    plain = document("--tool", "code.write_file", "path=b.md", "content=x")["call"]
    text = said("--tool", "code.write_file", "path=b.md", "content=x")

    assert plain["grant_scope"] == str(project)
    assert f"would cover {project}" in text
    assert "asks: it writes" in text


@pytest.mark.spec("ETS-02", "CMD-06", "PER-10")
def test_a_tool_outside_the_set_of_the_role_is_refused_by_the_rule_of_the_set(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project.parent / "home" / "config.toml"
    config.write_text('[tools]\nhidden = ["code.write_file"]\n', encoding="utf-8")

    call = document("--tool", "code.write_file", "path=a", "content=x", "--role", "worker")["call"]

    assert (call["effect"], call["layer"], call["error"]) == ("deny", "tool set", "tool_not_available")
    assert call["rule"] == "hidden by code.write_file (config.toml)"


def test_the_text_is_for_a_terminal_and_spells_out_what_a_terminal_would_obey(project: Path) -> None:
    lines = said().splitlines()
    shown = said("--tool", "code.write_file", "path=a\x1b[31m.md", "content=x")

    assert max(map(len, lines)) <= 120 + len(str(project))
    assert any(line.startswith("mode") for line in lines)
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a=b"], "Name it with --tool"),
        (["--tool", "code.nothing"], "there is no tool 'code.nothing'"),
        (["--tool", "code.write_file", "path=a"], "content"),
        (["--project", "/nonexistent/here"], "does not exist"),
        (["--allow", "code.write_file"], "say for what"),
    ],
)
def test_wrong_use_is_explained_in_words(project: Path, words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        said(*words)


def test_a_wrong_configuration_is_named_with_its_place(project: Path) -> None:
    config = project.parent / "home" / "config.toml"
    config.write_text('[[permission.rules]]\neffect = "allow"\nscope = "/"\n', encoding="utf-8")

    with pytest.raises(InvalidConfigError, match=r"permission\.rules\[0\].*too wide"):
        said()


@pytest.mark.spec("PER-10", "REG-08")
def test_a_rule_that_covers_no_tool_is_said_to(project: Path) -> None:
    rule = '\n[[permission.rules]]\neffect = "deny"\ntools = "code.wirte_file"\n'
    config = project.parent / "home" / "config.toml"
    config.write_text(config.read_text(encoding="utf-8") + rule, encoding="utf-8")

    lines = CliRunner().invoke(app, ["explain"]).stdout.splitlines()

    said = [line for line in lines if "covers no tool" in line]
    assert len(said) == 1
    assert "code.wirte_file" in said[0]


@pytest.mark.spec("PER-11.c", "PER-10.e")
def test_a_call_that_a_classifier_of_ones_own_calls_critical_asks_although_a_rule_allows_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(risk, "_REGISTERED", [])
    classifier = "from soong import Risk, risk_classifier\n@risk_classifier\ndef most(_): return Risk.CRITICAL\n"
    (project.parent / "risks_to_explain.py").write_text(classifier, encoding="utf-8")
    monkeypatch.setenv("SOONG_TOOLS", "risks_to_explain")
    monkeypatch.setenv("SOONG_IMPORT_PATH", str(project.parent))

    call = document("--tool", "code.write_file", "path=out/a.md", "content=x")["call"]

    assert (call["effect"], call["facts"]["risk"]) == ("ask", "critical")
    assert "its risk is critical" in call["reason"]


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


@pytest.mark.spec("PER-17")
def test_what_is_allowed_is_shown_whole() -> None:
    assert LONG in preview_text(preview(StepPreview("a", "A", "agent", (asked(LONG),))))


@pytest.mark.spec("PER-17")
def test_nothing_in_a_plan_is_obeyed_by_a_terminal_or_looks_like_a_line_of_ours() -> None:
    hostile = "/work/\x1b[2J\u202egpj.exe\n  [1] allow"
    steps = StepPreview("a", "\x1b]0;title\x07", "agent", (asked(hostile),), may_ask=("x\x1b[1A",))

    text = preview_text(Preview("\x1b[31mred\nsecond line", (steps,)))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\n  [1] allow" not in text
    assert "\nsecond line" not in text


@pytest.mark.spec("PER-17", "PER-17.b")
def test_each_step_takes_one_answer_and_other_words_are_asked_again(typed: io.StringIO) -> None:
    type_in(typed, "what?\n1\nlater\n")
    steps = tuple(StepPreview(name, name, "agent", (asked(f"/work/{name}"),)) for name in ("a", "b"))

    grants = consented(preview(*steps), (), is_shown=True, is_json=False)

    assert grants == (StepGrant("a", (("code.write_file", Scope(ScopeKind.PATH, "/work/a")),)),)


@pytest.mark.spec("PER-17")
@pytest.mark.parametrize("words", ["3\n", "", "q\n"], ids=["stop", "end of input", "quit"])
def test_stopping_at_any_step_grants_nothing_at_all(typed: io.StringIO, words: str) -> None:
    type_in(typed, f"1\n{words}")
    steps = tuple(StepPreview(name, name, "agent", (asked(f"/work/{name}"),)) for name in ("a", "b"))

    with pytest.raises(PreviewStoppedError):
        consented(preview(*steps), (), is_shown=True, is_json=False)


@pytest.mark.spec("PER-17")
def test_where_nothing_can_be_allowed_one_is_asked_whether_to_begin(typed: io.StringIO) -> None:
    type_in(typed, "1\n")
    refused = preview(StepPreview("a", "A", "agent", (asked("/work/a", Effect.DENY),)))

    assert consented(refused, (), is_shown=True, is_json=False) == ()


@pytest.mark.spec("PER-17")
def test_without_a_terminal_nothing_is_run_unless_steps_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert consented(preview(), (), is_shown=True, is_json=True) is None
    assert '"is_grantable": true' in capsys.readouterr().out
    assert consented(preview(), ("a",), is_shown=True, is_json=True) is not None
    captured = capsys.readouterr()
    assert (captured.out, "write  /work/a" in captured.err) == ("", True)
