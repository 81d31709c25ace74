"""The effective policy in words: everything that decides on a call, in the order in which it is asked (PER-10).

Made of the same values that judge, so that what is shown cannot drift from what is done. Pure.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.permissions.gate import scope_of
from soong.shared.permissions.policy import (
    DANGEROUS_ASK,
    PERMISSIONS,
    STRICT_ASK,
    Mode,
    NetworkMode,
    Policy,
    PolicyVerdict,
    evaluate,
)
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.sandbox.names import CONTROL_FILES, CONTROL_FOLDERS, GIT_CONTROLS
from soong.shared.sandbox.paths import KERNEL_ROOTS, READ, PathPolicy
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ToolFailure
from soong.shared.tools.surface import SurfaceDecision

VERSION = 1


class Line(Value):
    """One thing that decides. The first that speaks of a call decides on it, but for allow lines, which answer only
    what a default asks and never for a dangerous or critical call.
    """

    effect: Effect
    what: str
    source: str
    is_rule: bool = False


class SkillDeclaration(Value):
    """The tools and scopes that a skill asks for. They inform and never become a line that decides."""

    skill: str
    level: str
    allowed_tools: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()


class EffectivePolicy(Value):
    """Runtime defaults, configuration, skill declarations and sandbox put together (PER-10). ``skills`` are the
    declarations of the skills that runs can load: they ask and grant nothing, so no line is theirs.
    """

    policy: Policy
    paths: PathPolicy
    project: Path
    write_roots: Sequence[Path]
    tools: Sequence[ToolDefinition] = ()
    """The tools that rules may cover; a rule that covers none of these is reported as idle."""
    skills: Sequence[SkillDeclaration] = ()

    def lines(self) -> Iterator[Line]:
        """Yield everything that decides, in order: refusals of the runtime and the sandbox come first."""
        kernel = ", ".join(map(str, KERNEL_ROOTS))
        yield Line(Effect.DENY, "a tool outside the run's tool set (soong tools explain)", "runtime")
        yield Line(Effect.DENY, f"a path into {kernel}", "sandbox")
        yield Line(Effect.DENY, "a write to a protected name, existing or not", "sandbox")
        yield from self._rules(Effect.DENY)
        network = self.policy.network
        if network.mode is NetworkMode.OFF:
            yield Line(Effect.DENY, "whatever reaches the network", network.source)
        if network.mode is NetworkMode.ALLOWLIST:
            listed = ", ".join(dict.fromkeys((*network.hosts, *network.allowed))) or "no host at all"
            yield Line(Effect.DENY, f"a host that is not listed; listed: {listed}", network.source)
        if not self.policy.is_dangerous_enabled:
            yield Line(Effect.DENY, "what is dangerous: tools.dangerous of config.toml is off", "runtime")
        yield from self._rules(Effect.ASK)
        for why, _ in PERMISSIONS:
            if why != DANGEROUS_ASK or self.policy.is_dangerous_enabled:
                yield Line(Effect.ASK, f"when {why}", "runtime")
        if self.policy.mode is Mode.STRICT:
            yield Line(Effect.ASK, STRICT_ASK, "runtime")
        else:
            yield from self._rules(Effect.ALLOW)
        yield Line(Effect.ALLOW, "what only reads", "runtime")

    def protected(self) -> tuple[str, ...]:
        """Return what no file tool writes, in words."""
        controls = ", ".join(sorted(GIT_CONTROLS))
        return (
            f".git, .git/{{{controls}}}",
            *sorted(CONTROL_FILES),
            *(f"{name}/{''.join(f' but its {one}/' for one in free)}" for name, free in CONTROL_FOLDERS.items()),
            *(f"{folder}/ but its runs/" for folder in self.paths.own_folders),
            *map(str, (*self.paths.controls, *self.paths.secrets)),
            *(f"{folder}/ modules named as one of the program's" for folder in self.paths.imports.folders),
        )

    def own_files(self) -> tuple[str, ...]:
        """Return which of our own files and folders are not read without a question, besides the sensitive names."""
        read = ", ".join(f"{name}/" for name in sorted(READ))
        own = (f"{folder}/ but its {read}" for folder in self.paths.own_folders)
        return (*own, *map(str, self.paths.secrets))

    def as_json(self) -> dict[str, Json]:
        """Return a stable form; ``v`` grows when a field changes its meaning."""
        return {
            "v": VERSION,
            "project": str(self.project),
            "mode": str(self.policy.mode),
            "dangerous": self.policy.is_dangerous_enabled,
            "network": self.policy.network.as_json(),
            "order": [line.as_json() for line in self.lines()],
            "write_roots": [str(root) for root in self.write_roots],
            "read_roots": list(self.policy.read_roots),
            "sensitive": [*self.paths.sensitive, *self.own_files()],
            "protected": list(self.protected()),
            "skills": [skill.as_json() for skill in self.skills],
        }

    def _rules(self, effect: Effect) -> Iterator[Line]:
        rules: tuple[Rule, ...] = (*self.policy.rules, *self.policy.network.rules())
        for rule in sorted(
            (rule for rule in rules if rule.effect is effect), key=lambda rule: (str(rule), rule.source)
        ):
            what = str(rule).removeprefix(f"{effect} ")
            yield Line(effect, what + self._idle(rule), rule.source, is_rule=True)

    def _idle(self, rule: Rule) -> str:
        """Say of a rule that covers no tool that it does nothing: its name may be misspelt, or another tool's alias."""
        named = [tool for tool in self.tools if fnmatchcase(tool.name, rule.pattern)]
        if not self.tools or any(rule.tags <= tool.tags or tool.call_tags is not None for tool in named):
            return ""
        owner = next((tool.name for tool in self.tools if rule.pattern in tool.aliases), "")
        return f"  (covers no tool; rules go by canonical names{f': {owner}' if owner else ''})"


class CallExplanation(Value):
    """The decision on one call, and the rule behind it. Nothing is run."""

    tool: str
    effect: Effect
    layer: Literal["tool set", "sandbox", "policy"]
    rule: str
    source: str
    reason: str
    error: str = ""
    grant_scope: str = ""
    """The scope of allow_for_session; empty: it is not offered."""
    facts: dict[str, Json] | None = None

    def as_json(self) -> dict[str, Json]:
        return {**super().as_json(), "error": self.error or None, "grant_scope": self.grant_scope or None}


def by_tool_set(decision: SurfaceDecision) -> CallExplanation:
    reason = "the tool is not in the run's tool set"
    return CallExplanation(
        decision.tool, Effect.DENY, "tool set", decision.rule, "runtime", reason, "tool_not_available"
    )


def by_sandbox(tool: str, failure: ToolFailure) -> CallExplanation:
    """Explain a call whose target the tool itself refuses; nothing lifts that."""
    return CallExplanation(tool, Effect.DENY, "sandbox", str(failure.type), "sandbox", failure.message, failure.type)


def by_policy(policy: Policy, call: GateCall, *, home: str, is_tainted: bool = False) -> CallExplanation:
    """Explain a call that reaches permission."""
    verdict: PolicyVerdict = evaluate(policy, call, is_tainted=is_tainted)
    return CallExplanation(
        call.definition.name,
        verdict.effect,
        "policy",
        verdict.rule,
        verdict.source,
        verdict.reason,
        "" if verdict.error is None else str(verdict.error),
        scope_of(call, policy, home) if verdict.effect is Effect.ASK else "",
        call.facts(),
    )
