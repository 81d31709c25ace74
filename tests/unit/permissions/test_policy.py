"""The policy: which calls run, are asked or are refused, and what narrows it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.config import Config, PermissionConfig, RuleConfig, ToolsConfig
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import dump, parse_strict
from soong.shared.permissions.configured import WORKER_SOURCE, policy_of, surface_request
from soong.shared.permissions.policy import Mode, Policy, evaluate, judge
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.tools.definition import Permission, Risk, Target, ToolDefinition, Traits
from soong.shared.tools.naming import name_matches
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ErrorType
from soong.shared.tools.surface import RunMode, compute_surface, narrow
from tests.unit.permissions.calls import FACTS, POLICIES, RULES, make_call, make_facts, make_path, make_tool

READ = Traits(is_read_only=True, is_concurrency_safe=True)
OUT = Scope(ScopeKind.PATH, "/work/out")
EFFECTS = {Effect.DENY: 2, Effect.ASK: 1, Effect.ALLOW: 0}


def reading(**overrides: Any) -> GateCall:
    return make_call("x.y", **{"permission": Permission.READONLY, "traits": READ, **overrides})


DEFAULTS = {
    "read": (reading(risk=Risk.READ), Effect.ALLOW, "only reads"),
    "write": (make_call(), Effect.ASK, "it writes"),
    "write by definition": (make_call("x.y", traits=READ), Effect.ASK, "it writes"),
    "write by traits": (reading(traits=None), Effect.ASK, "it writes"),
    "network": (reading(tags=frozenset({"network"})), Effect.ASK, "network"),
    "dangerous": (reading(tags=frozenset({"dangerous"})), Effect.ASK, "danger"),
    "destructive": (reading(traits=replace(READ, is_destructive=True)), Effect.ASK, "danger"),
    "open world": (reading(traits=replace(READ, is_open_world=True)), Effect.ASK, "network"),
    "sensitive": (reading(target=make_path("/p/.env", is_sensitive=True)), Effect.ASK, "sensitive"),
    "outside": (reading(target=make_path("/e/x", is_inside_roots=False)), Effect.ASK, "outside"),
    "critical": (reading(risk=Risk.CRITICAL), Effect.ASK, "critical"),
}


@pytest.mark.spec("PER-02.a", "PER-02.b", "PER-02.c", "PER-02.d", "PER-20.a")
@pytest.mark.parametrize(("call", "effect", "why"), DEFAULTS.values(), ids=DEFAULTS)
def test_the_safe_default_of_each_kind_of_call(call: GateCall, effect: Effect, why: str) -> None:
    verdict = evaluate(Policy(is_dangerous_enabled=True), call)

    assert (verdict.effect, verdict.rule, verdict.source) == (effect, "default", "runtime")
    assert why in verdict.reason


@pytest.mark.spec("CMD-06.a", "CMD-06.c", "PER-08")
@pytest.mark.parametrize(
    "call",
    [
        make_call("x.run", tags=frozenset({"dangerous"})),
        make_call("x.clean", traits=Traits(is_destructive=True), risk=Risk.CRITICAL),
        make_call("x.y", permission=Permission.READONLY, traits=replace(READ, is_destructive=True)),
    ],
    ids=["tagged", "destructive", "destructive read"],
)
def test_a_dangerous_or_destructive_call_is_refused_until_it_is_enabled_and_then_asks(call: GateCall) -> None:
    allowed = Rule(Effect.ALLOW, "x.*", scope=OUT)

    refused = evaluate(Policy((allowed,)), call)
    asked = evaluate(Policy((allowed,), is_dangerous_enabled=True), call)

    assert (refused.effect, refused.rule, refused.source) == (Effect.DENY, "dangerous off", "runtime")
    assert refused.error is ErrorType.PERMISSION_DENIED
    assert asked.effect is Effect.ASK


@pytest.mark.spec("PER-20.b")
def test_strict_mode_asks_for_everything_above_reading_whatever_is_allowed() -> None:
    policy = Policy((Rule(Effect.ALLOW, "code.*", scope=OUT),), Mode.STRICT)

    assert judge(policy, make_facts()).effect is Effect.ASK
    assert judge(policy, make_facts(is_read=True, risk=Risk.WRITE)).effect is Effect.ASK
    assert judge(policy, make_facts(is_read=True, risk=Risk.READ)).effect is Effect.ALLOW


@pytest.mark.spec("REG-08.a", "REG-08.b")
@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule(Effect.DENY, "code.write_file"), True),
        (Rule(Effect.DENY, "code.*"), True),
        (Rule(Effect.DENY, "*"), True),
        (Rule(Effect.DENY, "code"), False),
        (Rule(Effect.DENY, "CODE.*"), False),
        (Rule(Effect.DENY, "*", frozenset({"write", "code"})), True),
        (Rule(Effect.DENY, "*", frozenset({"write", "network"})), False),
        (Rule(Effect.DENY, "*", scope=OUT), True),
        (Rule(Effect.DENY, "*", scope=Scope(ScopeKind.PATH, "/work/ou")), False),
        (Rule(Effect.DENY, "*", scope=Scope(ScopeKind.HOST, "example.org")), False),
    ],
    ids=str,
)
def test_a_rule_matches_by_name_tags_and_scope_together(rule: Rule, matches: bool) -> None:
    assert (judge(Policy((rule,)), make_facts()).effect is Effect.DENY) is matches


@pytest.mark.parametrize(("path", "effect"), [("/work/out", Effect.ASK), ("/work/out/.env", Effect.ALLOW)])
def test_a_sensitive_target_is_allowed_only_by_the_rule_that_names_it(path: str, effect: Effect) -> None:
    policy = Policy((Rule(Effect.ALLOW, "code.read_file", scope=Scope(ScopeKind.PATH, path)),))
    facts = make_facts("code.read_file", is_read=True, target=make_path("/work/out/.env", is_sensitive=True))

    assert judge(policy, facts).effect is effect


@pytest.mark.spec("REG-08.c", "PER-10.c")
@given(POLICIES, FACTS)
def test_deny_always_wins(policy: Policy, facts: CallFacts) -> None:
    is_denied = any(rule.effect is Effect.DENY and rule.matches(facts) for rule in policy.rules)
    is_off = policy.network.refusal(facts) or (facts.is_dangerous and not policy.is_dangerous_enabled)

    assert (judge(policy, facts).effect is Effect.DENY) is (is_denied or bool(is_off))


@pytest.mark.spec("REG-08.c")
@given(POLICIES, FACTS, st.randoms(use_true_random=False))
def test_the_order_of_rules_decides_nothing(policy: Policy, facts: CallFacts, random: object) -> None:
    shuffled = list(policy.rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random

    assert judge(replace(policy, rules=tuple(shuffled)), facts) == judge(policy, facts)


@pytest.mark.spec("PER-08.a")
@given(POLICIES, FACTS)
def test_no_policy_allows_what_is_dangerous_or_critical(policy: Policy, facts: CallFacts) -> None:
    for grave in (replace(facts, is_dangerous=True), replace(facts, risk=Risk.CRITICAL)):
        assert judge(policy, grave).effect is not Effect.ALLOW


@pytest.mark.spec("PER-10")
@given(POLICIES, RULES, FACTS)
def test_an_additional_deny_or_ask_rule_never_loosens_and_an_allow_rule_never_tightens(
    policy: Policy, rule: Rule, facts: CallFacts
) -> None:
    before = EFFECTS[judge(policy, facts).effect]
    after = EFFECTS[judge(policy.with_rules((rule,)), facts).effect]

    assert after <= before if rule.effect is Effect.ALLOW else after >= before


@pytest.mark.spec("PER-10", "REG-08.c")
@given(POLICIES, FACTS)
def test_an_allow_rule_lifts_no_ask_but_that_of_a_default(policy: Policy, facts: CallFacts) -> None:
    asks = [rule for rule in policy.rules if rule.effect is Effect.ASK and rule.matches(facts)]

    if asks or facts.hook_asks:
        assert judge(policy, facts).effect is not Effect.ALLOW


@given(POLICIES)
def test_a_policy_survives_its_row(policy: Policy) -> None:
    stored = parse_strict(dump(policy.as_json()))

    assert isinstance(stored, dict)
    assert Policy.from_json(stored) == policy


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"v": 5}, "version 5"),
        ({"read_roots": ["work"]}, r"matching regex .* at `\$.read_roots\[0\]`"),
        ({"mode": "yolo"}, "enum value 'yolo'"),
        ({"rules": "all"}, "`array`, got `str`"),
        ({"rules": ["allow"]}, r"`object`, got `str` - at `\$.rules\[0\]`"),
        ({"rules": [{"effect": "allow", "pattern": "*", "if": "x"}]}, "unknown field `if`"),
        ({"rules": [{"effect": "deny", "pattern": ""}]}, r"length >= 1 - at `\$.rules\[0\].pattern`"),
        ({"rules": [{"effect": "allow", "pattern": "*", "step": ""}]}, r"length >= 1 - at `\$.rules\[0\].step`"),
        ({"rules": [{"effect": "deny", "pattern": "*", "scope": {"kind": "url", "value": "x"}}]}, "'url'"),
        ({"network": {"mode": "maybe"}}, "enum value 'maybe'"),
        ({"network": {"mode": "allowlist", "allowed": [1]}}, r"at `\$.network.allowed\[0\]`"),
    ],
)
def test_what_is_no_policy_is_refused_with_its_place(value: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        Policy.from_json(value)  # type: ignore[arg-type]  # that is the point


@pytest.mark.spec("FS-06", "PER-10")
@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        ((), (), ()),
        ((), ("/a",), ()),
        (("/a",), ("/",), ("/a",)),
        (("/a", "/b"), ("/a/c", "/d"), ("/a/c",)),
        (("/a/c",), ("/a",), ("/a/c",)),
        (("/ab",), ("/a",), ()),
        (("/",), ("/a",), ("/a",)),
    ],
)
def test_a_worker_narrows_where_a_session_reads_and_never_widens_it(
    ours: tuple[str, ...], theirs: tuple[str, ...], both: tuple[str, ...]
) -> None:
    assert Policy(read_roots=ours).narrowed_by(Policy(read_roots=theirs)).read_roots == both


@pytest.mark.spec("FS-06")
def test_read_roots_are_read_by_no_program_that_does_not_know_them() -> None:
    assert Policy(read_roots=()).as_json()["v"] == 4
    assert Policy.from_json(Policy(read_roots=("/a",)).as_json()).read_roots == ("/a",)
    assert Policy.from_json({}).read_roots == ()


WRITE = Permission.WRITE
CHILD_TASK_TOOLS = ("agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step")
TOOLS = (
    *(make_tool(name, tags=frozenset({"agent", "internal"})) for name in CHILD_TASK_TOOLS),
    make_tool("agent.task_create"),
    make_tool("agent.plan_update"),
    make_tool("agent.dispatch_worker", permission=WRITE, is_agent_tool=True),
    make_tool("agent.create_sub_agent", permission=WRITE, is_agent_tool=True),
    make_tool("agent.list_workers"),
    make_tool("internal.recall_memory"),
    make_tool("code.read_file", tags=frozenset({"code", "filesystem"})),
    make_tool("code.write_file", permission=WRITE, tags=frozenset({"code", "filesystem"})),
    make_tool("code.run_command", permission=WRITE, tags=frozenset({"code", "dangerous"})),
    make_tool("mcp.web.fetch", tags=frozenset({"mcp", "network"})),
    make_tool("mcp.soong.answer", tags=frozenset({"mcp"})),
)
BLACK = {
    *("agent.task_create", "agent.plan_update", "agent.dispatch_worker", "agent.create_sub_agent"),
    *("agent.list_workers", "internal.recall_memory", "mcp.soong.answer"),
}
PATTERNS = st.sampled_from(["*", "agent.*", "code.*", "code.write_file", "mcp.*", "*.fetch", *sorted(BLACK)])
NAMES = st.none() | st.lists(PATTERNS, max_size=4).map(tuple)
TAGS = st.lists(st.sampled_from(["network", "mcp", "code", "dangerous"]), max_size=1).map(tuple)
CONFIGURED_RULES = st.builds(RuleConfig, effect=st.sampled_from(["deny", "ask"]), tools=PATTERNS, tags=TAGS)
CONFIGS = st.builds(
    Config,
    permission=st.builds(PermissionConfig, rules=st.lists(CONFIGURED_RULES, max_size=3).map(tuple)),
    tools=st.builds(ToolsConfig, dangerous=st.booleans(), hidden=st.lists(PATTERNS, max_size=2).map(tuple)),
)
CHILDREN = st.sampled_from([Role.SUB, Role.FORK, Role.WORKER])


def facts_of(tool: ToolDefinition) -> CallFacts:
    """Return the mildest facts that a call of a tool can have."""
    is_read = tool.permission is Permission.READONLY
    is_open = bool(tool.tags & {"network", "mcp"})
    risk = Risk.READ if is_read else Risk.WRITE
    return CallFacts(tool.name, tool.tags, is_read, "dangerous" in tool.tags, is_open, risk, Target())


@pytest.mark.spec("PER-18.a", "ETS-06.d", "ETS-03.a", "ETS-01.a")
@given(CONFIGS, CHILDREN, st.sampled_from(RunMode), NAMES, NAMES)
def test_the_tool_set_of_every_dispatch_is_inside_the_policy_and_never_shows_the_black_list(
    config: Config, role: Role, mode: RunMode, suggested: tuple[str, ...] | None, allowed: tuple[str, ...] | None
) -> None:
    """lvndry/jazz#336, antiv/mate#101: a child could be given tools that its parent was denied."""
    request = surface_request(config, role, mode, default_tools=suggested, allowed_tools=allowed)

    surface = compute_surface(TOOLS, request)

    policy = policy_of(config)
    for tool in TOOLS:
        if tool.name in surface.tools:
            assert tool.name not in BLACK
            assert not any(name_matches(pattern, tool.name) for pattern in config.tools.hidden)
            assert judge(policy, facts_of(tool)).effect is not Effect.DENY
            assert config.tools.dangerous or "dangerous" not in tool.tags


@pytest.mark.spec("PER-18.a", "ETS-05.d")
@given(CONFIGS, CONFIGS, CHILDREN, NAMES)
def test_what_a_worker_offers_is_inside_the_stored_set_and_inside_its_own_configuration(
    session: Config, worker: Config, role: Role, allowed: tuple[str, ...] | None
) -> None:
    stored = compute_surface(TOOLS, surface_request(session, role, allowed_tools=allowed)).tools
    selected = tuple(tool for tool in TOOLS if tool.name in stored)

    offered = narrow(selected, surface_request(worker, role, source=WORKER_SOURCE))

    policy = policy_of(session).narrowed_by(policy_of(worker, source=WORKER_SOURCE))
    assert {tool.name for tool in offered} <= set(stored)
    assert all(judge(policy, facts_of(tool)).effect is not Effect.DENY for tool in offered)


@pytest.mark.spec("ETS-05.a", "ETS-05.b", "ETS-05.d", "ETS-04", "ETS-03.b")
def test_a_worker_gets_a_write_tool_only_where_the_dispatch_asks_and_the_policy_lets_it() -> None:
    closed = Config(permission=PermissionConfig(rules=(RuleConfig(effect="deny", tools="code.write_file"),)))

    def tools(config: Config, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
        return compute_surface(TOOLS, surface_request(config, Role.WORKER, allowed_tools=allowed)).tools

    assert "code.write_file" not in tools(Config(), None)
    assert tools(Config(), ("code.write_file",)) == ("code.write_file",)
    assert tools(closed, ("code.write_file",)) == ()


@pytest.mark.spec("PER-18.b", "PER-10")
@given(CHILDREN, NAMES, st.sampled_from(["code.write_file", "mcp.web.fetch", "code.read_file"]))
def test_what_the_session_denies_is_no_childs_whatever_its_dispatch_asks_for(
    role: Role, suggested: tuple[str, ...] | None, denied: str
) -> None:
    """anthropics/claude-code#78063: what a parent was denied its children were not, so it delegated around it."""
    config = Config(permission=PermissionConfig(rules=(RuleConfig(effect="deny", tools=denied),)))
    wanted = surface_request(config, role, default_tools=suggested, allowed_tools=("*", denied))

    surface = compute_surface(TOOLS, wanted)

    tool = next(tool for tool in TOOLS if tool.name == denied)
    assert denied not in surface.tools
    assert judge(policy_of(config), facts_of(tool)).effect is Effect.DENY
