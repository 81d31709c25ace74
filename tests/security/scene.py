"""A project under the real policy with nobody to ask, beside secrets that must stay where they are."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soong.shared.core.jsontext import Json, dump
from soong.shared.permissions.gate import scope_of, verdict_of_policy
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.rules import Effect, Grant, GrantBook, parse_allow
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType, ToolResult
from tests.unit.tools.parts import PipelineHarness
from tests.unit.toolsets.parts import Project, make_project

CANARY = "canary-9f2c"
NO_CALLBACK = Verdict(is_allowed=False, author="system", reason="no callback", error=ErrorType.PERMISSION_NO_CALLBACK)


@dataclass
class PolicyGate:
    """The session's policy; what it would ask is remembered and denied, as without a callback (PER-05)."""

    policy: Policy = field(default_factory=Policy)
    asked: list[GateCall] = field(default_factory=list)

    async def decide(self, call: GateCall) -> Verdict:
        verdict = evaluate(self.policy, call)
        if verdict.effect is not Effect.ASK:
            return verdict_of_policy(verdict)
        self.asked.append(call)
        return NO_CALLBACK


@dataclass
class SecurityHarness(Project):
    """``root`` is the project, writable by rule; ``outside`` and ``home`` are not."""

    gate: PolicyGate
    before: dict[str, bytes] = field(default_factory=dict)

    async def outcome(self, tool: str, /, **arguments: Json) -> str:
        """Return ``ok``, ``asked`` or the type of the error; a denied question was really asked."""
        result = await self.call(tool, **arguments)
        if result.error is None:
            return "ok"
        assert result.error.message
        if result.error.type is ErrorType.PERMISSION_NO_CALLBACK:
            assert self.gate.asked
            return "asked"
        return result.error.type.value

    def secret(self, name: str = "secret") -> Path:
        path = self.outside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{CANARY}\n")
        return path

    def remember(self) -> None:
        """Take down all that lies outside the project."""
        self.before = self._outside()

    def check_unharmed(self, result: ToolResult) -> None:
        """Hold that nothing outside changed, nothing leaked, and that all of it can be stored as JSON."""
        assert self._outside() == self.before
        assert CANARY not in repr((result, self.bench.log.ends, self.bench.log.notes))
        assert "Traceback" not in repr(result)
        words: Any = [result.summary, result.data, dict(result.metadata), result.error and result.error.message]
        assert json.loads(dump(words).encode()) is not None

    def _outside(self) -> dict[str, bytes]:
        parent = self.root.parent
        entries = (path for path in parent.rglob("*") if not path.is_relative_to(self.root))
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in entries
            if path.is_symlink() or path.is_dir() or path.is_file()
        }


def make_scene(folder: Path, **place: Any) -> SecurityHarness:
    made = make_project(folder, place=place)
    allow = parse_allow(f"code.*:{made.root}", home=str(made.home))
    gate = PolicyGate(Policy((allow,)))
    made.bench.gate.decide = gate.decide  # type: ignore[method-assign]
    return SecurityHarness(made.root, made.outside, made.home, made.bench, gate)


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
