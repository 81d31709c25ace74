"""The hosts that a permitted call may connect to, by its session's policy (PER-09).

The same judgement at each redirect as before the call: another host is followed to exactly where a call for it would
have been allowed without asking.
"""

from msgspec.structs import replace

from soong.shared.permissions.policy import Policy, judge
from soong.shared.permissions.rules import CallFacts, Effect, Rule, is_of_step
from soong.shared.permissions.scope import ScopeKind
from soong.shared.sandbox.hosts import EgressPolicy, is_host_within
from soong.shared.tools.ports import Verdict


def reachable(policy: Policy, facts: CallFacts) -> EgressPolicy:
    """Return what a call with these facts, once permitted, may connect to; for the handler that connects."""

    def may_follow(host: str) -> bool:
        elsewhere = replace(facts.target, kind="host", scope=host, shown=host, host=host)
        return judge(policy, replace(facts, target=elsewhere)).effect is Effect.ALLOW

    def is_named(host: str) -> bool:
        return any(is_host_within(host, wanted) for wanted in named)

    rules = [rule for rule in policy.rules if rule.effect is Effect.ALLOW and _speaks(rule, facts)]
    scopes = [rule.scope for rule in rules if rule.scope is not None]
    written = (scope.value for scope in scopes if scope.kind is ScopeKind.HOST)
    # A pattern was not written with the machines of one's own network in mind.
    hosts = (*policy.network.hosts, *policy.network.allowed, *written)
    named = tuple(host for host in hosts if not host.startswith("*."))
    return EgressPolicy(facts.target.host, may_follow, is_named)


def with_egress(verdict: Verdict, policy: Policy, facts: CallFacts) -> Verdict:
    """Return the verdict on a call, with what an allowed one that names a host may connect to."""
    if not verdict.is_allowed or not facts.target.host:
        return verdict
    return replace(verdict, egress=reachable(policy, facts))


def _speaks(rule: Rule, facts: CallFacts) -> bool:
    """Say whether a rule is about the call's step: a rule for one step opens nothing to another (PER-17)."""
    return not rule.step or (is_of_step(facts.step, rule.step) and not facts.is_tainted)
