"""Which hosts a session's calls may reach (PER-09). Judged before any person is bothered; pure.

The same words are checked a second time where a connection is made and at each redirect
(:mod:`soong.shared.sandbox.network`): a call that was permitted for one host does not lead to another.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from soong.shared.core.value import Value
from soong.shared.permissions.rules import CallFacts, Effect, Rule
from soong.shared.permissions.scope import Scope, ScopeKind
from soong.shared.sandbox.hosts import is_host_within


class NetworkMode(StrEnum):
    """ASK: as any other call that asks. ALWAYS_ASK: each time, whatever was granted. ALLOWLIST: listed hosts ask, no
    others are reached. OFF: none is. Ordered as written, from the loosest to the tightest.
    """

    ASK = "ask"
    ALWAYS_ASK = "always_ask"
    ALLOWLIST = "allowlist"
    OFF = "off"


_MODES = tuple(NetworkMode)


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
        """Return what ``allowed`` says, as rules."""
        if self.asks_each_time:
            return ()
        return tuple(
            Rule(Effect.ALLOW, "*", scope=Scope(ScopeKind.HOST, host), source=self.source) for host in self.allowed
        )

    def narrowed_by(self, other: "NetworkPolicy") -> "NetworkPolicy":
        """Return the policy under which a call has to pass both. What the other allows unasked counts for nothing."""
        is_each_time = self.asks_each_time or other.asks_each_time
        tighter = max(self.mode, other.mode, key=_MODES.index)
        if tighter is not NetworkMode.ALLOWLIST:
            source = self.source if self.mode is tighter else other.source
            return NetworkPolicy(tighter, self.hosts, self.allowed, is_each_time, source)
        if self.mode is not other.mode:
            listing, source = (self, self.source) if self.mode is tighter else (other, other.source)
            allowed = self.allowed if listing is self else _in_both(self.allowed, other)
            return NetworkPolicy(tighter, (*listing.hosts, *listing.allowed), allowed, is_each_time, source)
        hosts = _in_both((*self.hosts, *self.allowed), other)
        return NetworkPolicy(
            tighter, hosts, _in_both(self.allowed, other), is_each_time, f"{self.source} and {other.source}"
        )


def _in_both(hosts: Sequence[str], other: NetworkPolicy) -> tuple[str, ...]:
    """Return the hosts that lie on both lists, each as the narrower of the two says it."""
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
