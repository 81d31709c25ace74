"""A rule of one step speaks of that step alone, answers what a default asks and nothing else (PER-17)."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.permissions.policy import Mode, Policy, judge, reachable
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind, is_of_step
from soong.shared.tools.definition import Risk, Target
from tests.unit.permissions.calls import FACTS, POLICIES, make_facts, make_path

pytestmark = pytest.mark.spec("PER-17")

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


@pytest.mark.spec("PER-18")
@given(POLICIES, CONSENTS, FACTS)
def test_consent_to_one_step_never_changes_the_verdict_for_another(
    policy: Policy, rule: Rule, facts: CallFacts
) -> None:
    """anomalyco/opencode#9554: what was allowed to one agent leaked to the others."""
    assume(not is_of_step(facts.step, rule.step))

    assert judge(policy.with_rules([rule]), facts) == judge(policy, facts)


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


@pytest.mark.spec("PER-10")
@given(POLICIES, POLICIES, st.lists(CONSENTS, max_size=3), FACTS)
def test_a_worker_that_denies_or_asks_is_not_widened_by_consent(
    session: Policy, worker: Policy, rules: list[Rule], facts: CallFacts
) -> None:
    order = [Effect.ALLOW, Effect.ASK, Effect.DENY]
    consented = session.with_rules(rules)

    narrowed = judge(consented.narrowed_by(worker), facts).effect

    assert order.index(narrowed) >= order.index(judge(consented, facts).effect)


@pytest.mark.spec("PER-21")
def test_a_host_that_was_consented_to_is_asked_for_once_the_run_is_tainted() -> None:
    policy = Policy((consent(scope=HOST, tool="mcp.web.fetch"),))
    target = Target(kind="host", scope="api.example.org", shown="api.example.org", host="api.example.org")
    facts = make_facts("mcp.web.fetch", tags=frozenset({"network"}), target=target, step="task_1/a")

    assert judge(policy, facts).effect is Effect.ALLOW
    assert judge(policy, replace(facts, is_tainted=True)).effect is Effect.ASK


@pytest.mark.spec("PER-09")
def test_a_host_of_one_step_is_no_way_into_ones_own_network_for_another() -> None:
    policy = Policy((consent(scope=Scope(ScopeKind.HOST, "db.internal"), tool="mcp.web.fetch"),))
    target = Target(kind="host", scope="db.internal", shown="db.internal", host="db.internal")
    facts = make_facts("mcp.web.fetch", tags=frozenset({"network"}), target=target)

    assert reachable(policy, replace(facts, step="task_1/a")).is_named("db.internal")
    assert not reachable(policy, replace(facts, step="task_1/b")).is_named("db.internal")
    assert not reachable(policy, replace(facts, step="task_1/a", is_tainted=True)).is_named("db.internal")
