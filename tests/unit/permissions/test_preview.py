"""What a plan will ask for is shown before it starts, judged by what judges its calls (PER-17)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy, judge
from soong.shared.permissions.preview import Previewer
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools import permission_check as risk
from soong.shared.tools.definition import Permission, Risk, RunDirs, Target, ToolContext, ToolDefinition
from soong.shared.toolsets.code.edit_file import edit_file_tool
from soong.shared.toolsets.code.run_command import CommandTool
from soong.shared.toolsets.code.write_file import write_file_tool
from tests.unit.permissions.calls import make_facts, make_path, make_tool

pytestmark = pytest.mark.spec("PER-17")

HOME = "/home/ada"


def fetch_target(_context: ToolContext, call_input: JsonObject) -> Target:
    host = str(call_input["host"])
    return Target("host", host, host, host)


def declared_target(_context: ToolContext, _call_input: JsonObject) -> Target:
    return Target("command", "/p: /usr/bin/env", "/usr/bin/env -u X", "")


FETCH = make_tool("team.fetch", permission=Permission.WRITE, tags=frozenset({"network"}), target=fetch_target)
LISTED = make_tool("declared.env", permission=Permission.WRITE, tags=frozenset({"declarative"}), target=declared_target)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    return folder


def look(
    project: Path,
    asks: str,
    *,
    policy: Policy | None = None,
    tools: Sequence[ToolDefinition] | None = None,
    inputs: JsonObject | None = None,
    home: str = HOME,
) -> StepPreview:
    """Return the preview of one step that asks for this."""
    text = f"title: t\ninputs: {{x: out}}\nsteps:\n- id: a\n  instructions: x\n  permissions: {asks}\n"
    return previewer(project, policy, tools, home).preview(parse_plan(text, "p"), inputs or {"x": "out"}).steps[0]


def previewer(
    project: Path, policy: Policy | None = None, tools: Sequence[ToolDefinition] | None = None, home: str = HOME
) -> Previewer:
    paths = PathPolicy()
    own = (write_file_tool(paths), edit_file_tool(paths), CommandTool(paths).definition(), FETCH, LISTED)
    given = own if tools is None else tuple(tools)
    place = RunDirs(project, project, project / "run", (project,))

    def tools_of(_step: StepSpec) -> Sequence[ToolDefinition]:
        return given

    return Previewer(policy or Policy(is_dangerous_enabled=True), paths, place, tools_of, home)


def only(step: StepPreview) -> CheckedPermission:
    (found,) = step.permissions
    return found


def test_a_write_is_resolved_and_may_be_granted_for_the_tools_that_write_files(project: Path) -> None:
    (project / "real").mkdir()
    (project / "docs").symlink_to("real")

    step = look(project, "{write: [docs/]}")

    asked = only(step)
    assert (asked.given, asked.shown, asked.effect) == ("docs/", str(project / "real"), Effect.ASK)
    assert asked.grantable == ("code.write_file", "code.edit_file")
    scope = Scope(ScopeKind.PATH, str(project / "real"))
    assert step.grant == StepGrant("a", (("code.write_file", scope), ("code.edit_file", scope)))
    assert step.may_ask == ("code.run_command", "team.fetch", "declared.env")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".git/hooks/pre-commit", "a protected name"),
        (".soong/tools/x.json", "a protected name"),
        ("/proc/self/mem", "kernel"),
        ("${inputs.x}", "entire file system"),
    ],
)
@pytest.mark.spec("FS-09")
def test_what_no_tool_writes_is_refused_and_never_offered(project: Path, path: str, reason: str) -> None:
    step = look(project, f"{{write: ['{path}']}}", inputs={"x": "/"})

    assert only(step).effect is Effect.DENY
    assert reason in only(step).reason
    assert step.grantable == ()


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize("path", ["/home", "/home/ada", "/root", "/home/ada/.."])
def test_a_home_and_what_is_around_one_is_shown_and_never_offered(project: Path, path: str) -> None:
    step = look(project, f"{{write: [{path}]}}")

    assert (only(step).effect, only(step).reason) == (Effect.ASK, "too wide to be allowed beforehand")
    assert only(step).is_outside
    assert step.grantable == ()


@pytest.mark.spec("FS-06")
def test_a_sensitive_file_is_asked_for_when_it_is_written(project: Path) -> None:
    step = look(project, "{write: [.env]}")

    assert (only(step).effect, step.grantable) == (Effect.ASK, ())


@pytest.mark.spec("PER-11.c")
def test_what_a_classifier_calls_critical_is_never_offered(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edits(tool: ToolDefinition) -> Risk:
        return Risk.CRITICAL if tool.name == "code.edit_file" else Risk.READ

    monkeypatch.setattr(risk, "_REGISTERED", [edits])

    step = look(project, "{write: [docs]}")

    assert (only(step).effect, only(step).grantable) == (Effect.ASK, ("code.write_file",))


def test_what_a_rule_allows_runs_and_what_one_denies_is_refused_with_its_source(project: Path) -> None:
    docs, sealed = Scope(ScopeKind.PATH, str(project / "docs")), Scope(ScopeKind.PATH, str(project / "sealed"))
    rules = (
        Rule(Effect.ALLOW, "code.*", scope=docs, source="--allow"),
        Rule(Effect.DENY, "*", scope=sealed, source="config.toml"),
    )

    step = look(project, "{write: [docs/a.md, sealed/b.md, .]}", policy=Policy(rules))

    allowed, denied, around = step.permissions
    assert (allowed.effect, allowed.source, allowed.scope) == (Effect.ALLOW, "--allow", None)
    assert (denied.effect, denied.source, denied.scope) == (Effect.DENY, "config.toml", None)
    assert around.effect is Effect.ASK
    assert f"refused within it: {project}/sealed" in around.reason


@pytest.mark.spec("PER-20")
@pytest.mark.parametrize(
    "policy",
    [Policy(mode=Mode.STRICT), Policy((Rule(Effect.ASK, "*"),)), Policy(network=NetworkPolicy(NetworkMode.ALWAYS_ASK))],
    ids=["strict", "ask rule", "each time"],
)
def test_where_each_call_is_asked_nothing_is_offered(project: Path, policy: Policy) -> None:
    step = look(project, "{hosts: [api.example.org]}", policy=policy)

    assert (only(step).effect, step.grantable) == (Effect.ASK, ())


@pytest.mark.spec("PER-09")
def test_a_host_is_compared_as_policies_do_and_asked_again_when_tainted(project: Path) -> None:
    listed = Policy(network=NetworkPolicy(NetworkMode.ALLOWLIST, ("api.example.org",)))

    step = look(project, "{hosts: [API.example.org., evil.test]}", policy=listed)

    ours, other = step.permissions
    assert (ours.shown, ours.grantable) == ("api.example.org", ("team.fetch",))
    assert "once the run has read untrusted content" in ours.reason
    assert (other.effect, other.scope) == (Effect.DENY, None)


@pytest.mark.spec("PER-08")
def test_a_program_is_shown_with_its_whole_argv_and_asked_each_time(project: Path) -> None:
    step = look(project, "{run: [[env, X=1, 'a b'], [sh, -c, ls], [no-such-program-here]]}")

    command, shell, missing = step.permissions
    assert command.shown.startswith("/usr/bin/env X=1 'a b' in ")
    assert (command.effect, command.tools, command.scope) == (Effect.ASK, ("code.run_command",), None)
    assert "dangerous" in command.reason
    assert (shell.effect, shell.scope) == (Effect.DENY, None)
    assert (missing.effect, missing.scope) == (Effect.ASK, None)
    assert "not found here" in missing.reason


def test_a_declared_tool_that_starts_the_program_may_be_granted_for_exactly_that(project: Path) -> None:
    tools = (LISTED,)

    plain = only(look(project, "{run: [env]}", tools=tools))
    exact = only(look(project, "{run: [[/usr/bin/env, -u, X]]}", tools=tools))
    other = only(look(project, "{run: [[env, -u, Y]]}", tools=tools))

    assert plain.grantable == exact.grantable == ("declared.env",)
    assert plain.scope == Scope(ScopeKind.EXACT, "/p: /usr/bin/env")
    assert (other.tools, other.scope) == ((), None)
    assert "no tool that could do it" in other.reason


def test_a_step_that_says_nothing_is_reported_with_the_tools_that_may_ask(project: Path) -> None:
    plan = parse_plan("title: t\nsteps: [{id: a, instructions: x}, {id: p, kind: python, call: builtin.echo}]", "p")

    silent, python = previewer(project).preview(plan, {}).steps

    assert silent.may_ask == ("code.write_file", "code.edit_file", "code.run_command", "team.fetch", "declared.env")
    assert python == StepPreview("p", "p", "python")


MAP = """
title: t
inputs: {names: [left, right, left]}
steps:
  - id: each
    kind: map
    over: ${inputs.names}
    as: name
    step: {instructions: x, permissions: {write: ["${name}/out"]}}
  - id: late
    kind: map
    depends_on: [each]
    over: ${each.output}
    step: {instructions: x, permissions: {write: ["${item}/out", fixed]}}
"""


def test_a_map_shows_what_its_known_items_ask_for_and_says_what_comes_later(project: Path) -> None:
    plan = parse_plan(MAP, "p")

    each, late = previewer(project).preview(plan, {"names": ["left", "right", "left"]}).steps

    assert [asked.shown for asked in each.permissions] == [str(project / "left/out"), str(project / "right/out")]
    unknown, fixed = late.permissions
    assert (unknown.shown, unknown.effect, unknown.scope) == ("", Effect.ASK, None)
    assert "only when the step starts" in unknown.reason
    assert fixed.grantable == ("code.write_file", "code.edit_file")


@pytest.mark.spec("PER-17.a")
def test_the_union_names_each_thing_once_with_its_hardest_verdict(project: Path) -> None:
    one = CheckedPermission(PermissionKind.WRITE, "a", "/p/a", Effect.ALLOW, "")
    preview = Preview(
        "t",
        (
            StepPreview("a", "a", "agent", (one, replace(one, shown="/p/b"))),
            StepPreview("b", "b", "agent", (replace(one, effect=Effect.DENY),)),
        ),
    )

    assert [(asked.shown, asked.effect) for asked in preview.union(PermissionKind.WRITE)] == [
        ("/p/a", Effect.DENY),
        ("/p/b", Effect.ALLOW),
    ]
    assert preview.union(PermissionKind.RUN) == ()
    assert preview.as_json()["v"] == 1


def test_consent_to_a_step_that_is_not_there_or_has_nothing_to_allow_says_why(project: Path) -> None:
    text = (
        "title: t\nsteps: [{id: build, instructions: x, permissions: {write: [.git/config]}}, {id: b, instructions: x}]"
    )
    preview = previewer(project).preview(parse_plan(text, "p"), {})

    with pytest.raises(UsageError, match="no step 'biuld'; did you mean 'build'"):
        preview.grants(["biuld"])
    with pytest.raises(UsageError, match="does not say what it asks for; write `permissions:`"):
        preview.grants(["b"])
    with pytest.raises(UsageError, match=r"nothing that step 'build' asks for .*protected name"):
        preview.grants(["build"])


def test_consent_to_what_is_allowed_already_is_no_error_and_no_rule(project: Path) -> None:
    rule = Rule(Effect.ALLOW, "code.*", scope=Scope(ScopeKind.PATH, str(project)))

    preview = Preview("t", (look(project, "{write: [docs]}", policy=Policy((rule,))),))

    assert preview.grants(["a"]) == ()


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize(
    ("tool", "scope"),
    [
        ("*", Scope(ScopeKind.PATH, "/p/docs")),
        ("", Scope(ScopeKind.PATH, "/p/docs")),
        ("code.write_file", Scope(ScopeKind.PATH, "/")),
        ("code.write_file", Scope(ScopeKind.PATH, HOME)),
        ("code.write_file", Scope(ScopeKind.PATH, "/p/../..")),
        ("code.write_file", Scope(ScopeKind.EXACT, " ")),
        ("team.fetch", Scope(ScopeKind.HOST, "*.example.org")),
    ],
)
def test_a_consent_made_by_hand_is_no_wider_than_one_that_was_offered(tool: str, scope: Scope) -> None:
    with pytest.raises(UsageError, match="too wide to be allowed for a step"):
        StepGrant("a", ((tool, scope),)).rules("task_1", principal="ada", now_us=0, home=HOME)


@pytest.mark.spec("PER-10")
@given(
    st.lists(
        st.builds(
            Rule,
            st.sampled_from(Effect),
            st.sampled_from(["*", "code.*", "code.write_file", "team.fetch"]),
            scope=st.sampled_from([None, Scope(ScopeKind.PATH, "/srv/p"), Scope(ScopeKind.PATH, "/srv/p/docs")]),
        ),
        max_size=4,
    ),
    st.sampled_from(Mode),
)
def test_what_is_offered_is_honoured_and_what_is_not_still_asks(rules: list[Rule], mode: Mode) -> None:
    policy = Policy(tuple(rules), mode)
    step = look(Path("/srv/p"), "{write: [docs, docs/a.md, other]}", policy=policy)

    consented = policy.with_rules(step.grant.rules("task_1", principal="ada", now_us=0, home=HOME))

    for asked in step.permissions:
        facts = make_facts(step="task_1/a", target=make_path(asked.shown))
        before, after = judge(policy, facts).effect, judge(consented, facts).effect
        if "code.write_file" in asked.grantable:
            assert (before, after) == (Effect.ASK, Effect.ALLOW)
        if before is Effect.DENY or not step.grantable:
            assert after is before
        assert judge(consented, replace(facts, step="task_1/b")) == judge(policy, replace(facts, step="task_1/b"))
