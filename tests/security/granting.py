"""A session whose person allows the first question for the session, and what later calls are asked then."""

from dataclasses import dataclass, field
from pathlib import Path

from soong.shared.permissions.gate import scope_of, verdict_of_policy
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.rules import Effect, Grant, GrantBook
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType
from tests.unit.tools.parts import PipelineHarness


@dataclass
class GrantingGate:
    """The real policy and the real grants. The person allows the first question for the session and then is away."""

    book: GrantBook = field(default_factory=GrantBook)
    asked: list[GateCall] = field(default_factory=list)
    policy: Policy = field(default_factory=lambda: Policy(is_dangerous_enabled=True))

    async def decide(self, call: GateCall) -> Verdict:
        verdict = evaluate(self.policy, call)
        if verdict.effect is not Effect.ASK:
            return verdict_of_policy(verdict)
        scope = scope_of(call, self.policy, str(Path.home()))
        if scope and self.book.find(call.definition.name, scope):
            return Verdict(is_allowed=True, author="grant")
        self.asked.append(call)
        if len(self.asked) > 1:
            return Verdict(is_allowed=False, author="system", error=ErrorType.PERMISSION_NO_CALLBACK)
        if scope:
            self.book.add(Grant(call.definition.name, scope, "user", "dec_1"))
        return Verdict(is_allowed=True, author="person")


def granting(bench: PipelineHarness) -> GrantingGate:
    """Put such a session in the place of the bench's gate."""
    gate = GrantingGate()
    bench.gate.decide = gate.decide  # type: ignore[method-assign]  # the real policy and grants in its place
    return gate
