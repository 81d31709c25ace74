"""Off, asked, listed, each time: what a session's calls may reach (PER-09)."""

import pytest
from hypothesis import given
from msgspec.structs import replace

from soong.shared.permissions.policy import NetworkMode, NetworkPolicy, Policy, judge
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.tools.definition import Risk, Target
from soong.shared.tools.result import ErrorType
from tests.unit.permissions.calls import FACTS, POLICIES, make_facts, make_path

EFFECTS = {Effect.DENY: 2, Effect.ASK: 1, Effect.ALLOW: 0}
LIST = NetworkPolicy(NetworkMode.ALLOWLIST, ("*.example.org",), ("api.test",), source="config.toml")


def web(host: str = "www.example.org", **overrides: object) -> CallFacts:
    target = Target(kind="host", scope=host, shown=f"https://{host}/", host=host)
    facts = CallFacts("web.fetch", frozenset({"network"}), True, False, True, Risk.READ, target)
    return replace(facts, **overrides)  # a test names real fields


def judged(network: NetworkPolicy, facts: CallFacts, *rules: Rule) -> tuple[Effect, ErrorType | None]:
    verdict = judge(Policy(rules, network=network), facts)
    return verdict.effect, verdict.error


@pytest.mark.spec("PER-09.c")
@pytest.mark.parametrize(
    ("network", "host", "effect", "error"),
    [
        (NetworkPolicy(), "evil.test", Effect.ASK, None),
        (NetworkPolicy(NetworkMode.ALWAYS_ASK), "evil.test", Effect.ASK, None),
        (NetworkPolicy(NetworkMode.OFF), "evil.test", Effect.DENY, ErrorType.NETWORK_DENIED),
        (NetworkPolicy(NetworkMode.OFF), "", Effect.DENY, ErrorType.NETWORK_DENIED),
        (LIST, "www.example.org", Effect.ASK, None),
        (LIST, "WWW.Example.ORG.", Effect.ASK, None),
        (LIST, "api.test", Effect.ALLOW, None),
        (LIST, "example.org", Effect.DENY, ErrorType.NETWORK_DENIED),
        (LIST, "www.example.org.evil.test", Effect.DENY, ErrorType.NETWORK_DENIED),
        (LIST, "2130706433", Effect.DENY, ErrorType.NETWORK_DENIED),
        (LIST, "no host", Effect.DENY, ErrorType.NETWORK_DENIED),
        (LIST, "", Effect.DENY, ErrorType.NETWORK_DENIED),
        (NetworkPolicy(allowed=("api.test",)), "api.test", Effect.ALLOW, None),
        (NetworkPolicy(allowed=("api.test",)), "evil.test", Effect.ASK, None),
    ],
)
def test_a_host_is_refused_asked_or_allowed(
    network: NetworkPolicy, host: str, effect: Effect, error: ErrorType | None
) -> None:
    assert judged(network, web(host)) == (effect, error)


@pytest.mark.spec("PER-09.a", "PER-11")
def test_off_refuses_what_is_open_world_and_leaves_the_rest() -> None:
    off = NetworkPolicy(NetworkMode.OFF)
    read = make_facts("code.read_file", is_read=True, risk=Risk.READ, target=make_path("/work/a"))

    assert judged(off, replace(read, is_open_world=True))[0] is Effect.DENY
    assert judged(off, replace(read, target=Target(host="example.org")))[0] is Effect.DENY
    assert judged(off, read)[0] is Effect.ALLOW


@pytest.mark.spec("PER-09")
def test_a_tool_that_is_open_world_without_naming_hosts_asks_under_a_list() -> None:
    server = replace(web(""), tags=frozenset({"mcp"}))

    assert judged(LIST, server) == (Effect.ASK, None)


@pytest.mark.spec("PER-09.b")
def test_always_ask_asks_each_time_whatever_is_allowed_or_granted() -> None:
    always_ask = NetworkPolicy(NetworkMode.ALWAYS_ASK)
    rule = Rule(Effect.ALLOW, "*", scope=Scope(ScopeKind.HOST, "api.test"))

    assert judged(always_ask, web("api.test"), rule)[0] is Effect.ASK
    assert Policy(network=always_ask).asks_each_time(web("api.test"))
    assert not Policy(network=always_ask).asks_each_time(make_facts())
    assert not Policy().asks_each_time(web("api.test"))


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize(
    ("scope", "effect"),
    [
        (Scope(ScopeKind.HOST, "api.example.org"), Effect.ALLOW),
        (Scope(ScopeKind.HOST, "*.example.org"), Effect.ASK),
        (Scope(ScopeKind.EXACT, "api.example.org"), Effect.ASK),
        (None, Effect.ASK),
    ],
    ids=str,
)
def test_of_a_tainted_run_only_a_host_that_was_written_out_is_allowed(scope: Scope | None, effect: Effect) -> None:
    rule = Rule(Effect.ALLOW, "web.*", scope=scope)

    assert judged(NetworkPolicy(), web("api.example.org"), rule)[0] is Effect.ALLOW
    assert judged(NetworkPolicy(), web("api.example.org", is_tainted=True), rule)[0] is effect


@pytest.mark.spec("PER-21")
def test_taint_changes_nothing_for_calls_that_stay_inside() -> None:
    read = make_facts("code.read_file", is_read=True, risk=Risk.READ)

    assert judge(Policy(), replace(read, is_tainted=True)) == judge(Policy(), read)


@pytest.mark.spec("PER-21")
@given(POLICIES, FACTS)
def test_taint_never_loosens(policy: Policy, facts: CallFacts) -> None:
    clean = judge(policy, replace(facts, is_tainted=False)).effect
    tainted = judge(policy, replace(facts, is_tainted=True)).effect

    assert EFFECTS[tainted] >= EFFECTS[clean]


@pytest.mark.spec("PER-10", "PER-18")
@given(POLICIES, POLICIES, FACTS)
def test_a_narrowed_policy_is_nowhere_looser_than_either_allows(ours: Policy, theirs: Policy, facts: CallFacts) -> None:
    narrowed = judge(ours.narrowed_by(theirs), facts).effect

    assert EFFECTS[narrowed] >= EFFECTS[judge(ours, facts).effect]
    if judge(theirs, facts).effect is Effect.DENY:
        assert narrowed is Effect.DENY
    asks = [rule for rule in theirs.rules if rule.effect is Effect.ASK and rule.matches(facts)]
    assert not asks or narrowed is not Effect.ALLOW
    if theirs.asks_each_time(facts):
        assert ours.narrowed_by(theirs).asks_each_time(facts)


@pytest.mark.spec("PER-10")
@given(POLICIES, FACTS)
def test_a_worker_without_a_configuration_of_its_own_takes_away_only_what_is_dangerous(
    policy: Policy, facts: CallFacts
) -> None:
    narrowed = policy.narrowed_by(Policy())

    assert judge(narrowed, facts).effect is judge(replace(policy, is_dangerous_enabled=False), facts).effect
    assert narrowed.asks_each_time(facts) is policy.asks_each_time(facts)


def test_a_policy_of_the_version_before_is_read_with_the_safe_values() -> None:
    assert Policy.from_json({"v": 1, "mode": "auto", "rules": []}) == Policy()
