"""Rules and scopes, of a session and of one step."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.orchestrator.terminal.console import visible
from soong.shared.core.errors import UsageError
from soong.shared.permissions.configured import writable_by_rule
from soong.shared.permissions.policy import Mode, Policy, judge, reachable
from soong.shared.permissions.rules import (
    CallFacts,
    Effect,
    Grant,
    GrantBook,
    Rule,
    Scope,
    ScopeKind,
    is_of_step,
    is_within,
    offered_scope,
    parse_allow,
    reads_untrusted,
)
from soong.shared.tools.definition import Permission, Risk, Target, ToolDefinition
from tests.unit.permissions.calls import FACTS, POLICIES, make_facts, make_path, make_tool


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/c", "/a/b", True),
        ("/a/bc", "/a/b", False),
        ("/a", "/a/b", False),
        ("/a/b", "/", True),
        ("/a/b/../c", "/a/b", False),
        ("/a/b/./c", "/a/b", False),
        ("/a/b/", "/a/b", False),
        ("//a/b", "/a", False),
        ("a/b", "/a", False),
        ("", "/", False),
    ],
)
def test_a_path_is_within_a_folder_by_components(path: str, folder: str, inside: bool) -> None:
    assert is_within(path, folder) is inside


@pytest.mark.spec("PER-08.c")
@pytest.mark.parametrize(
    ("target", "offered"),
    [
        (make_path("/work/out/x"), "/work/out"),
        (make_path("/home/someone/project/x"), "/home/someone/project"),
        (make_path("/x"), ""),
        (make_path("/home/someone/x"), ""),
        (make_path("/home/x"), ""),
        (make_path("/work/x", scope=""), ""),
        (make_path("/work/x", scope=" "), ""),
        (make_path("/work/x", scope="*"), ""),
        (make_path("/work/x", scope="/work/*"), ""),
        (make_path("/work/x", scope="/work/../etc"), ""),
        (make_path("/work/x", scope="work"), ""),
        (make_path("/work/x", scope="/work/\udcff"), ""),
        (make_path("/work/x", scope="/work/\0"), ""),
        (make_path("/work/out /x"), ""),
        (make_path("/work/out\xa0/x"), ""),
        (make_path("/work/out /deeper/x"), "/work/out /deeper"),
        (make_path("/work/o\u200but/x"), ""),
        (make_path("/work/o\ufffdut/x"), ""),
        (make_path(f"/work/{'o' * 4000}/x"), ""),
        (make_path("/work/my out/x"), "/work/my out"),
        (make_path("/work/\xe4\u6587/x"), "/work/\xe4\u6587"),
        (Target(kind="command", scope="git status @ /work"), "git status @ /work"),
        (Target(kind="command", scope="/usr/bin/git -C /x status in /work"), "/usr/bin/git -C /x status in /work"),
        (Target(kind="command", scope="git status "), ""),
        (Target(kind="host", scope="example.org"), "example.org"),
        (Target(), ""),
    ],
)
def test_a_session_grant_is_offered_only_for_a_narrow_scope(target: Target, offered: str) -> None:
    assert offered_scope(target, "/home/someone") == offered


BLANKS = " \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u2028\u3000\u200b\ufeff\u3164\u2800\ufe0f\0\x1b\ufffd"
NAMES = st.text(st.one_of(st.sampled_from(f"ab.*/\\u{BLANKS}"), st.characters()), min_size=1, max_size=6)


@pytest.mark.spec("PER-04", "PER-08")
@settings(max_examples=400)
@given(
    st.sampled_from(["path", "command", "host", "resource"]),
    st.lists(st.tuples(NAMES, st.sampled_from(["", *BLANKS]), st.sampled_from(["", *BLANKS])), min_size=2, max_size=2),
)
def test_different_targets_never_share_a_grant_nor_its_text_on_a_screen(kind: Any, named: list[Any]) -> None:
    prefix = "/p/" if kind == "path" else ""
    scopes = [f"{prefix}{before}{name}{after}" for name, before, after in named]
    first, second = (offered_scope(Target(kind=kind, scope=scope), "/home/someone") for scope in scopes)

    assert first in ("", scopes[0])
    if first and second and scopes[0] != scopes[1]:
        assert first != second
        assert visible(first) != visible(second)
        assert visible(first).strip() != visible(second).strip()


def test_an_exact_scope_covers_that_text_and_no_path() -> None:
    scope = Scope(ScopeKind.EXACT, "git status")

    assert scope.covers(Target(kind="command", scope="git status @ /work", shown="git status"))
    assert not scope.covers(Target(kind="command", scope="git status -v"))
    assert not scope.covers(make_path("git status", scope="git status"))
    assert not Scope(ScopeKind.EXACT, "").covers(Target(kind="command"))


@pytest.mark.spec("PER-04.a", "PER-16.c")
def test_a_grant_holds_for_its_tool_and_exactly_its_scope() -> None:
    book = GrantBook()
    book.add(Grant("code.write_file", "/work/out", "local", "dec_1"))
    book.add(Grant("code.write_file", "/work/out", "local", "dec_2"))

    found = book.find("code.write_file", "/work/out")
    assert found is not None
    assert found.decision_id == "dec_1"
    assert book.find("code.edit_file", "/work/out") is None
    assert book.find("code.write_file", "/work/out/deeper") is None
    assert len(book) == 1


@pytest.mark.spec("PER-04.a")
@pytest.mark.parametrize(("tool", "scope"), [("", "/work"), ("code.write_file", "")])
def test_a_grant_by_name_or_scope_alone_is_refused(tool: str, scope: str) -> None:
    with pytest.raises(ValueError, match="needs a tool and a scope"):
        GrantBook().add(Grant(tool, scope, "local", "dec_1"))


HOME = "/home/someone"


def test_a_link_in_a_scope_is_resolved_because_targets_are(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    rule = parse_allow(f"code.write_file:{tmp_path}/link", home=HOME)

    assert rule.scope == Scope(ScopeKind.PATH, str(tmp_path.resolve() / "real"))


def test_the_scope_may_be_left_out_for_a_tool_that_only_reads() -> None:
    assert parse_allow("web.search", readonly_tools=("web.search",)).scope is None


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name a tool"),
        (":/work", "name a tool"),
        ("*:/work", "name a tool"),
        ("*.*:/work", "name a tool"),
        ("code.write_file", "say for what"),
        ("code.write_file:", "say for what"),
        ("code.write_file:*", "not a pattern"),
        ("mcp.x.t", "write mcp.x.t:now, or exact: and a scope that `soong mcp show NAME` prints"),
        ("mcp.x.t:*", "as it is defined now; write mcp.x.t:now"),
        ("mcp.*:/work", "write mcp.*:now"),
        ("code.write_file:/work/*", "not a pattern"),
        ("code.write_file:host:*", "not a pattern"),
        ("code.write_file:/", "too wide"),
        ("code.write_file://", "too wide"),
        ("code.write_file:/home/someone", "too wide"),
        ("code.write_file:/home/someone/", "too wide"),
        ("code.write_file:/home/someone/x/..", "too wide"),
        ("code.write_file:/home", "too wide"),
        ("code.write_file:~", "too wide"),
        ("code.write_file:out", "not an absolute path"),
        ("code.write_file:~other/out", "not an absolute path"),
        ("code.write_file:/work/\0", "not an absolute path"),
        ("code.write_file:/work/out ", "begins or ends with a blank"),
        ("code.write_file: /work/out", "begins or ends with a blank"),
        ("mcp.db.query:exact:orders\xa0", "begins or ends with a blank"),
        ("web.fetch:host:", "nothing after 'host:'"),
        ("web.fetch:host:*.", "nothing after 'host:'"),
    ],
)
def test_what_is_too_wide_or_no_scope_is_refused_with_its_hint(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="--allow") as caught:
        parse_allow(text, home=HOME)

    assert words in str(caught.value)


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize(
    ("tool", "reads"),
    [
        (make_tool("code.read_file", tags=frozenset({"code", "filesystem", "readonly"})), True),
        (make_tool("code.write_file", permission=Permission.WRITE, tags=frozenset({"code", "filesystem"})), False),
        (make_tool("code.run", permission=Permission.WRITE, tags=frozenset({"code", "dangerous"})), True),
        (make_tool("mcp.web.fetch", tags=frozenset({"mcp"})), True),
        (make_tool("team.count"), True),
        (make_tool("agent.task_get", tags=frozenset({"agent", "internal"})), False),
        (make_tool("internal.load_skill", tags=frozenset({"internal"})), False),
        (make_tool("internal.x", tags=frozenset({"internal"}), metadata={"reads_untrusted": True}), True),
        (make_tool("team.x", metadata={"reads_untrusted": False}), True),
        (make_tool("team.x", tags=frozenset({"internal", "declarative"})), True),
        (make_tool("team.x", tags=frozenset({"internal", "network"})), True),
    ],
    ids=lambda value: value.name if isinstance(value, ToolDefinition) else str(value),
)
def test_a_tool_is_trusted_only_where_it_speaks_of_our_own_state(tool: ToolDefinition, reads: bool) -> None:
    assert reads_untrusted(tool) is reads


TOOLS = (
    make_tool("code.read_file", permission=Permission.READONLY, tags=frozenset({"code"})),
    make_tool("code.write_file", permission=Permission.WRITE, tags=frozenset({"code", "filesystem"})),
)


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize(
    ("rule", "opened"),
    [
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "code.*", scope=Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "*", frozenset({"filesystem"}), Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x"), step="task/s"), True),
        (Rule(Effect.ALLOW, "*", frozenset({"network"}), Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ALLOW, "code.read_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ASK, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.DENY, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.EXACT, "/opt/x")), False),
    ],
    ids=str,
)
def test_an_allow_rule_for_a_tool_that_writes_opens_its_folder(rule: Rule, opened: bool) -> None:
    assert writable_by_rule(Policy((rule,)), TOOLS) == ((Path("/opt/x"),) if opened else ())


OUT = Scope(ScopeKind.PATH, "/work/out")
HOST = Scope(ScopeKind.HOST, "api.example.org")
CONSENTS = st.builds(
    Rule,
    st.just(Effect.ALLOW),
    st.sampled_from(["code.write_file", "code.read_file", "code.run_command", "mcp.web.fetch"]),
    scope=st.sampled_from([OUT, Scope(ScopeKind.PATH, "/work"), HOST]),
    source=st.just("step consent by local at 2026-01-01T00:00:00Z"),
    step=st.sampled_from(["task_1/a", "task_1/m"]),
)


def consent(step: str = "task_1/a", scope: Scope = OUT, tool: str = "code.write_file") -> Rule:
    return Rule(Effect.ALLOW, tool, scope=scope, source="step consent by local at noon", step=step)


@pytest.mark.spec("PER-17")
@pytest.mark.parametrize(
    ("step", "wanted", "is_served"),
    [
        ("task_1/a", "task_1/a", True),
        ("task_1/m[x]", "task_1/m", True),
        ("task_1/m[a[b]", "task_1/m", True),
        ("task_1/ab", "task_1/a", False),
        ("task_1/a", "task_1/ab", False),
        ("task_2/a", "task_1/a", False),
        ("task_1/m", "task_1/m[x]", False),
        ("task_1/m[y]", "task_1/m[x]", False),
        ("task_1/m[x", "task_1/m", False),
        ("", "task_1/a", False),
        ("", "", False),
    ],
)
def test_a_step_serves_itself_and_the_children_of_its_map(step: str, wanted: str, is_served: bool) -> None:
    assert is_of_step(step, wanted) is is_served


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-17.b")
def test_consent_to_a_step_lets_its_write_run_and_asks_for_every_other() -> None:
    policy = Policy((consent(),))

    ours = judge(policy, make_facts(step="task_1/a"))

    assert (ours.effect, ours.source) == (Effect.ALLOW, "step consent by local at noon")
    assert ours.rule == "allow code.write_file:/work/out for step task_1/a"
    for step in ("task_1/b", "task_2/a", ""):
        assert judge(policy, make_facts(step=step)).effect is Effect.ASK
    elsewhere = make_facts(step="task_1/a", target=make_path("/work/other/x"))
    assert judge(policy, elsewhere).effect is Effect.ASK


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-18")
@given(POLICIES, CONSENTS, FACTS)
def test_consent_to_one_step_never_changes_the_verdict_for_another(
    policy: Policy, rule: Rule, facts: CallFacts
) -> None:
    """anomalyco/opencode#9554: what was allowed to one agent leaked to the others."""
    assume(not is_of_step(facts.step, rule.step))

    assert judge(policy.with_rules([rule]), facts) == judge(policy, facts)


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-10.c", "PER-08")
@given(POLICIES, st.lists(CONSENTS, max_size=4), FACTS)
def test_no_consent_lifts_a_refusal_or_answers_what_takes_a_person_each_time(
    policy: Policy, rules: list[Rule], facts: CallFacts
) -> None:
    before, after = judge(policy, facts), judge(policy.with_rules(rules), facts)

    if before.effect is Effect.DENY:
        assert after == before
    if before.effect is not after.effect:
        assert (before.effect, after.effect) == (Effect.ASK, Effect.ALLOW)
        assert not any((facts.is_dangerous, facts.hook_asks, facts.risk is Risk.CRITICAL))
        assert policy.mode is not Mode.STRICT
        assert not facts.target.is_sensitive
        assert not facts.is_outward or not any((facts.is_tainted, policy.network.asks_each_time))


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-10")
@given(POLICIES, POLICIES, st.lists(CONSENTS, max_size=3), FACTS)
def test_a_worker_that_denies_or_asks_is_not_widened_by_consent(
    session: Policy, worker: Policy, rules: list[Rule], facts: CallFacts
) -> None:
    order = [Effect.ALLOW, Effect.ASK, Effect.DENY]
    consented = session.with_rules(rules)

    narrowed = judge(consented.narrowed_by(worker), facts).effect

    assert order.index(narrowed) >= order.index(judge(consented, facts).effect)


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-21")
def test_a_host_that_was_consented_to_is_asked_for_once_the_run_is_tainted() -> None:
    policy = Policy((consent(scope=HOST, tool="mcp.web.fetch"),))
    target = Target(kind="host", scope="api.example.org", shown="api.example.org", host="api.example.org")
    facts = make_facts("mcp.web.fetch", tags=frozenset({"network"}), target=target, step="task_1/a")

    assert judge(policy, facts).effect is Effect.ALLOW
    assert judge(policy, replace(facts, is_tainted=True)).effect is Effect.ASK


@pytest.mark.spec("PER-17")
@pytest.mark.spec("PER-09")
def test_a_host_of_one_step_is_no_way_into_ones_own_network_for_another() -> None:
    policy = Policy((consent(scope=Scope(ScopeKind.HOST, "db.internal"), tool="mcp.web.fetch"),))
    target = Target(kind="host", scope="db.internal", shown="db.internal", host="db.internal")
    facts = make_facts("mcp.web.fetch", tags=frozenset({"network"}), target=target)

    assert reachable(policy, replace(facts, step="task_1/a")).is_named("db.internal")
    assert not reachable(policy, replace(facts, step="task_1/b")).is_named("db.internal")
    assert not reachable(policy, replace(facts, step="task_1/a", is_tainted=True)).is_named("db.internal")
