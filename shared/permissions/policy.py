"""Which calls run, which are asked, which are refused, before any person is bothered (PER-02, PER-08, PER-10).

Deny beats ask beats allow whatever the order of the rules. Under the rules lie the runtime's safe defaults, which no
configuration lifts: reads are allowed, everything else asks, dangerous tools are refused until they are enabled. An
allow rule answers the ask of a default for exactly its scope, and never that of a dangerous call. Evaluation is pure;
the session's policy is stored as JSON in its row, so that ``--allow`` and configuration survive where grants do not. A
worker's own configuration narrows it and never widens it. The hosts that a permitted call may connect to are judged as
the call was (PER-09).
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, ValidationError, convert
from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind, is_of_step, is_within
from soong.shared.sandbox.hosts import EgressPolicy, is_host_within
from soong.shared.tools.definition import Risk
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType

POLICY_VERSION = 4
"""Version 1 knew neither the network nor whether dangerous tools are enabled: it gets the safe values.

Version 2 knew no rule of a step, version 3 no read roots. Each policy is written in the oldest version that can express
it, so that workers of an earlier version read it, or refuse what they would read too widely.
"""

TAINTED_ASK: Final = "it reaches out of a run that read untrusted content, whatever was granted"
DANGEROUS_ASK: Final = "it is dangerous"


class Mode(StrEnum):
    """AUTO: the defaults of PER-02. STRICT: everything above risk read asks each time, whatever is allowed (PER-20)."""

    AUTO = "auto"
    STRICT = "strict"


class NetworkMode(StrEnum):
    """ASK: as any other call that asks. ALWAYS_ASK: each time, whatever was granted. ALLOWLIST: listed hosts ask, no
    others are reached. OFF: none is. Ordered as written, from the loosest to the tightest.
    """

    ASK = "ask"
    ALWAYS_ASK = "always_ask"
    ALLOWLIST = "allowlist"
    OFF = "off"


class NetworkPolicy(Value):
    """Hosts and what is done about them. ``hosts`` are listed (ALLOWLIST), ``allowed`` are listed and not asked for.

    A host is a name, or ``*.`` and the domain that it lies below. ``is_each_time`` takes the use from session grants
    and from ``allowed``; mode CONFIRM means it, and it is kept apart because a worker may add it to a list.
    """

    mode: NetworkMode = NetworkMode.ASK
    hosts: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    is_each_time: bool = msgspec.field(default=False, name="each_time")
    source: str = "runtime"

    @property
    def asks_each_time(self) -> bool:
        return self.is_each_time or self.mode is NetworkMode.ALWAYS_ASK

    def refusal(self, facts: CallFacts) -> str:
        """Return why these facts are refused, or nothing."""
        host = facts.target.host
        if not facts.is_outward:
            return ""
        if self.mode is NetworkMode.OFF:
            return f"the network is switched off by {self.source}"
        if self.mode is not NetworkMode.ALLOWLIST:
            return ""
        if host:
            return "" if self.lists(host) else f"{host!r} is not on the list of hosts of {self.source}"
        is_unknown = "network" in facts.tags
        return f"it names no host, and {self.source} opens only listed ones" if is_unknown else ""

    def lists(self, host: str) -> bool:
        """Say whether a host is on the list; an allowed one is."""
        return any(is_host_within(host, wanted) for wanted in (*self.hosts, *self.allowed))

    def rules(self) -> tuple[Rule, ...]:
        if self.asks_each_time:
            return ()
        return tuple(
            Rule(Effect.ALLOW, "*", scope=Scope(ScopeKind.HOST, host), source=self.source) for host in self.allowed
        )

    def narrowed_by(self, other: "NetworkPolicy") -> "NetworkPolicy":
        """Return the policy under which a call has to pass both. The other's ``allowed`` hosts grant nothing."""
        is_each_time = self.asks_each_time or other.asks_each_time
        tighter = max(self.mode, other.mode, key=_MODES.index)
        if tighter is not NetworkMode.ALLOWLIST:
            source = self.source if self.mode is tighter else other.source
            return NetworkPolicy(tighter, self.hosts, self.allowed, is_each_time, source)
        if self.mode is not other.mode:
            listing, source = (self, self.source) if self.mode is tighter else (other, other.source)
            allowed = self.allowed if listing is self else _hosts_in_both(self.allowed, other)
            return NetworkPolicy(tighter, (*listing.hosts, *listing.allowed), allowed, is_each_time, source)
        hosts = _hosts_in_both((*self.hosts, *self.allowed), other)
        return NetworkPolicy(
            tighter, hosts, _hosts_in_both(self.allowed, other), is_each_time, f"{self.source} and {other.source}"
        )


class Policy(Value):
    """A session's rules above the safe defaults. Empty is the safest: it only reads by itself."""

    rules: tuple[Rule, ...] = ()
    mode: Mode = Mode.AUTO
    network: NetworkPolicy = msgspec.field(default_factory=NetworkPolicy)
    is_dangerous_enabled: bool = msgspec.field(default=False, name="dangerous")
    read_roots: tuple[Annotated[str, Meta(pattern="^/")], ...] = ()
    """Resolved folders that are read without being asked, besides the run's own (:mod:`soong.shared.sandbox.paths`)."""

    @property
    def read_folders(self) -> tuple[Path, ...]:
        """The read roots as paths, as a ``RunDirs`` has them."""
        return tuple(map(Path, self.read_roots))

    def with_rules(self, rules: Iterable[Rule]) -> "Policy":
        """Return the policy with more rules; an existing rule is not repeated."""
        return replace(self, rules=tuple(dict.fromkeys((*self.rules, *rules))))

    def narrowed_by(self, other: "Policy") -> "Policy":
        """Return the policy under which nothing is looser than here: the other's allow rules count for nothing."""
        narrowed = self.with_rules(rule for rule in other.rules if rule.effect is not Effect.ALLOW)
        return replace(
            narrowed,
            mode=Mode.STRICT if Mode.STRICT in (self.mode, other.mode) else Mode.AUTO,
            network=self.network.narrowed_by(other.network),
            is_dangerous_enabled=self.is_dangerous_enabled and other.is_dangerous_enabled,
            read_roots=_in_both(self.read_roots, other.read_roots),
        )

    def asks_each_time(self, facts: CallFacts) -> bool:
        """Say whether no grant is used for such a call and none is offered (PER-09, PER-20)."""
        is_each_time = self.mode is Mode.STRICT or facts.risk is Risk.CRITICAL
        return is_each_time or (facts.is_outward and self.network.asks_each_time)

    def as_json(self) -> dict[str, Json]:
        return {**super().as_json(), "v": POLICY_VERSION, "rules": [rule.as_json() for rule in self.rules]}

    @classmethod
    def from_json(cls, value: JsonObject) -> "Policy":
        """Read a stored policy; an empty object is the empty policy.
        Raises: InvalidConfigError, it is not a policy; names the place. A policy that cannot be read allows nothing.
        """
        if value.get("v", POLICY_VERSION) not in range(1, POLICY_VERSION + 1):
            raise InvalidConfigError(f"policy: version {value.get('v')!r} is not one this program reads")
        try:
            return convert(value, cls)
        except ValidationError as error:
            raise InvalidConfigError(f"policy: {error}") from error


def _in_both(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that lie in both, each in the narrower form."""
    inner = [folder for folder in ours if any(is_within(folder, root) for root in theirs)]
    inner += [folder for folder in theirs if any(is_within(folder, root) for root in ours)]
    return tuple(dict.fromkeys(inner))


def policy_for(policy: Policy, identity: RunIdentity) -> Policy:
    """Return the session's policy as it holds for one of its runs. Allow rules and grants are the consent of the
    session's own side. For a run that another side had made everything above reading is asked, each time.
    """
    return foreign(policy) if identity.origin.is_foreign else policy


def foreign(policy: Policy) -> Policy:
    """Return the session's policy as it holds for a run that another side had made."""
    return replace(policy, mode=Mode.STRICT)


class PolicyVerdict(Value):
    """A policy's verdict on one call. ``rule`` and ``source`` name the deciding rule; ``reason`` explains it. ``error``
    is set exactly when the effect is deny.
    """

    effect: Effect
    rule: str
    source: str
    reason: str
    error: ErrorType | None = None


def evaluate(policy: Policy, call: GateCall, *, is_tainted: bool = False) -> PolicyVerdict:
    return judge(policy, replace(CallFacts.of(call), is_tainted=is_tainted))


def judge(policy: Policy, facts: CallFacts) -> PolicyVerdict:
    """Judge facts: deny, then ask, then the defaults, of which allow rules may answer some."""
    denied = _denied(policy, facts)
    if denied is not None:
        return denied
    asked = _first(policy.rules, Effect.ASK, facts)
    if asked is not None:
        return _by_rule(asked, f"the rule {str(asked)!r} of {asked.source} wants it to be asked")
    why = next((why for why, applies in PERMISSIONS if applies(facts)), "")
    if not why and policy.mode is Mode.STRICT and facts.risk > Risk.READ:
        why = STRICT_ASK
    if not why:
        return PolicyVerdict(Effect.ALLOW, "default", "runtime", "it only reads")
    default = PolicyVerdict(Effect.ASK, "default", "runtime", f"{why}, which asks by default")
    if facts.is_dangerous or facts.risk is Risk.CRITICAL or facts.hook_asks or policy.mode is Mode.STRICT:
        return default  # no rule replaces a person's yes
    for rule in _matching((*policy.rules, *policy.network.rules()), Effect.ALLOW, facts):
        if _answers(rule, facts) and not (facts.is_outward and policy.network.asks_each_time):
            return _by_rule(rule, f"the rule {str(rule)!r} of {rule.source} allows it")
    return default


def _denied(policy: Policy, facts: CallFacts) -> PolicyVerdict | None:
    rule = _first(policy.rules, Effect.DENY, facts)
    if rule is not None:
        return _by_rule(rule, f"the rule {str(rule)!r} of {rule.source} refuses it", ErrorType.PERMISSION_DENIED)
    problem = policy.network.refusal(facts)
    if problem:
        name = f"network {policy.network.mode}"
        return PolicyVerdict(Effect.DENY, name, policy.network.source, problem, ErrorType.NETWORK_DENIED)
    if facts.is_dangerous and not policy.is_dangerous_enabled:
        reason = "it is dangerous, and dangerous calls are off until the configuration enables them"
        return PolicyVerdict(Effect.DENY, "dangerous off", "runtime", reason, ErrorType.PERMISSION_DENIED)
    return None


PERMISSIONS: Final[tuple[tuple[str, Callable[[CallFacts], bool]], ...]] = (
    (DANGEROUS_ASK, lambda facts: facts.is_dangerous),
    ("its risk is critical", lambda facts: facts.risk is Risk.CRITICAL),
    ("a hook or the tool itself wants it to be asked", lambda facts: facts.hook_asks),
    (TAINTED_ASK, lambda facts: facts.is_outward and facts.is_tainted),
    ("it writes", lambda facts: not facts.is_read),
    ("it reaches the network", lambda facts: facts.is_outward),
    ("its target is sensitive", lambda facts: facts.target.is_sensitive),
    ("its target lies outside the roots", lambda facts: not facts.target.is_inside_roots),
)
"""The facts that ask by default, and their words; the first that applies is reported (PER-02)."""
STRICT_ASK: Final = "strict mode asks for everything above reading"


def _answers(rule: Rule, facts: CallFacts) -> bool:
    if rule.step and (facts.target.is_sensitive or (facts.is_outward and facts.is_tainted)):
        # A person's word given before the run began is a grant: none covers a key, nor what strangers made of the run.
        return False
    if facts.target.is_sensitive:
        # A rule for a folder was not written with the keys in it in mind: it has to name them.
        return rule.scope is not None and rule.scope.names(facts.target)
    if facts.is_outward and facts.is_tainted:
        # Untrusted content may have chosen the host: only one that was written out beforehand is safe (PER-21).
        return rule.scope is not None and rule.scope.kind is ScopeKind.HOST and not rule.scope.value.startswith("*.")
    return rule.scope is not None or facts.is_read


def _matching(rules: Iterable[Rule], effect: Effect, facts: CallFacts) -> list[Rule]:
    """Return the matching rules in an order of their own, so that the order of writing decides nothing."""
    return sorted(
        (rule for rule in rules if rule.effect is effect and rule.matches(facts)),
        key=lambda rule: (str(rule), rule.source),
    )


def _first(rules: Iterable[Rule], effect: Effect, facts: CallFacts) -> Rule | None:
    return next(iter(_matching(rules, effect, facts)), None)


def _by_rule(rule: Rule, reason: str, error: ErrorType | None = None) -> PolicyVerdict:
    return PolicyVerdict(rule.effect, str(rule), rule.source, reason, error)


_MODES = tuple(NetworkMode)


def _hosts_in_both(hosts: Sequence[str], other: NetworkPolicy) -> tuple[str, ...]:
    """Return the hosts that lie on both lists, each in the narrower form."""
    both: dict[str, None] = {}
    for ours in hosts:
        for theirs in (*other.hosts, *other.allowed):
            if _covers(theirs, ours):
                both[ours] = None
            elif _covers(ours, theirs):
                both[theirs] = None
    return tuple(both)


def _covers(wide: str, narrow: str) -> bool:
    """Say whether every host that ``narrow`` means is one that ``wide`` means."""
    if wide == narrow:
        return True
    if not wide.startswith("*."):
        return False
    return is_host_within(narrow.removeprefix("*."), wide)


def reachable(policy: Policy, facts: CallFacts) -> EgressPolicy:
    """Return what a call with these facts, once permitted, may connect to; for the handler that connects."""

    def may_follow(host: str) -> bool:
        elsewhere = replace(facts.target, kind="host", scope=host, shown=host, host=host)
        return judge(policy, replace(facts, target=elsewhere)).effect is Effect.ALLOW

    def is_named(host: str) -> bool:
        return any(is_host_within(host, wanted) for wanted in named)

    # A rule for one step opens nothing to another (PER-17).
    spoken = (
        rule for rule in policy.rules if not rule.step or (is_of_step(facts.step, rule.step) and not facts.is_tainted)
    )
    scopes = [rule.scope for rule in spoken if rule.effect is Effect.ALLOW and rule.scope is not None]
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
