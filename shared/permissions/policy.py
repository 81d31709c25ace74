"""Which calls run, which are asked, which are refused, before any person is bothered (PER-02, PER-08, REG-08).

Deny beats ask beats allow whatever the order of the rules. Under the rules lie the runtime's safe defaults, which no
configuration lifts: what only reads is allowed, everything else asks. An allow rule answers the ask of a default for
exactly its scope, and never that of a dangerous call. Evaluation is pure; the session's policy is stored as JSON in
its row, so that ``--allow`` and configuration survive where grants do not.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from shared.errors import InvalidConfigError, UsageError
from shared.jsontext import Json, JsonObject
from shared.permissions.scope import Scope, ScopeKind, is_normal, is_too_wide
from shared.tools.definition import Permission, Risk, Target
from shared.tools.ports import GateCall

POLICY_VERSION = 1


class Effect(StrEnum):
    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class Mode(StrEnum):
    """AUTO: the defaults of PER-02. STRICT: everything above risk read asks each time, whatever is allowed (PER-20)."""

    AUTO = "auto"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence of a policy. It speaks of a call whose canonical name matches ``pattern``, that has all ``tags``,
    and whose target lies in ``scope``; no scope means wherever. ``source`` says who wrote it.
    """

    effect: Effect
    pattern: str
    tags: frozenset[str] = frozenset()
    scope: Scope | None = None
    source: str = "config"

    def matches(self, facts: "Facts") -> bool:
        return (
            fnmatchcase(facts.tool, self.pattern)
            and self.tags <= facts.tags
            and (self.scope is None or self.scope.covers(facts.target))
        )

    def __str__(self) -> str:
        tags = f"[{','.join(sorted(self.tags))}]" if self.tags else ""
        return f"{self.effect} {self.pattern}{tags}" + (f":{self.scope}" if self.scope else "")

    def as_json(self) -> dict[str, Json]:
        scope: Json = None if self.scope is None else {"kind": str(self.scope.kind), "value": self.scope.value}
        return {
            "effect": str(self.effect),
            "pattern": self.pattern,
            "tags": sorted(self.tags),
            "scope": scope,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class Policy:
    """A session's rules above the safe defaults. Empty is the safest: it only reads by itself."""

    rules: tuple[Rule, ...] = ()
    mode: Mode = Mode.AUTO

    def with_rules(self, rules: Iterable[Rule]) -> "Policy":
        """Return the policy with further rules; a rule that stands already is not repeated."""
        return Policy(tuple(dict.fromkeys((*self.rules, *rules))), self.mode)

    def as_json(self) -> dict[str, Json]:
        return {"v": POLICY_VERSION, "mode": str(self.mode), "rules": [rule.as_json() for rule in self.rules]}

    @classmethod
    def from_json(cls, value: JsonObject) -> "Policy":
        """Read a stored policy; an empty object is the empty policy.

        Raises:
            InvalidConfigError: it is not a policy; names the rule. A policy that cannot be read allows nothing.
        """
        if value.get("v", POLICY_VERSION) != POLICY_VERSION:
            raise InvalidConfigError(f"policy: version {value.get('v')!r} is not one this program reads")
        rules = value.get("rules", ())
        if isinstance(rules, str) or not isinstance(rules, Sequence):
            raise InvalidConfigError("policy: rules is not a list")
        try:
            mode = Mode(str(value.get("mode", Mode.AUTO)))
        except ValueError as error:
            raise InvalidConfigError(f"policy: mode {value.get('mode')!r} is neither auto nor strict") from error
        return cls(tuple(_read_rule(position, rule) for position, rule in enumerate(rules)), mode)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may know of a call, from the call itself or from the request that was made of it."""

    tool: str
    tags: frozenset[str]
    is_read: bool
    is_dangerous: bool
    is_open_world: bool
    risk: Risk
    target: Target
    hook_asks: bool = False

    @classmethod
    def of(cls, call: GateCall) -> "Facts":
        """Read a call. Its traits raise it above its definition and never lower it (REG-05)."""
        tags = call.definition.tags
        return cls(
            tool=call.definition.name,
            tags=tags,
            is_read=call.permission is Permission.READONLY and call.traits.is_read_only,
            is_dangerous="dangerous" in tags or call.traits.is_destructive,
            is_open_world="network" in tags or call.traits.is_open_world,
            risk=call.risk,
            target=call.target,
            hook_asks=call.hook_result == "ask",
        )


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """What a policy says of one call. ``rule`` and ``source`` name what decided; ``reason`` is a sentence about it."""

    effect: Effect
    rule: str
    source: str
    reason: str


def evaluate(policy: Policy, call: GateCall) -> PolicyVerdict:
    """Judge a call by the policy alone."""
    return judge(policy, Facts.of(call))


def judge(policy: Policy, facts: Facts) -> PolicyVerdict:
    """Judge facts: deny, then ask, then the defaults, of which allow rules may answer some."""
    denied = _first(policy.rules, Effect.DENY, facts)
    if denied is not None:
        return _by_rule(denied, f"the rule {str(denied)!r} of {denied.source} refuses it")
    asked = _first(policy.rules, Effect.ASK, facts)
    if asked is not None:
        return _by_rule(asked, f"the rule {str(asked)!r} of {asked.source} wants it to be asked")
    default = _default(policy.mode, facts)
    if default.effect is Effect.ALLOW or not _may_be_allowed(policy.mode, facts):
        return default
    for rule in _matching(policy.rules, Effect.ALLOW, facts):
        if _answers(rule, facts):
            return _by_rule(rule, f"the rule {str(rule)!r} of {rule.source} allows it")
    return default


def parse_allow(text: str, *, source: str = "--allow", readonly_tools: Collection[str] = (), home: str = "") -> Rule:
    """Read ``tool:scope`` as an allow rule.

    ``tool`` may be a pattern (``code.*``). ``scope`` is an absolute folder or file, ``host:example.org`` or
    ``exact:<the tool's own scope>``. It may be left out only for a tool of ``readonly_tools``.

    Raises:
        UsageError: says what is wrong and what to write.
    """
    pattern, separator, wanted = text.strip().partition(":")
    if not any(char.isalnum() for char in pattern):
        raise UsageError(f"{source} {text!r}: name a tool, for example code.write_file:/absolute/folder")
    if not separator and pattern in readonly_tools:
        return Rule(Effect.ALLOW, pattern, source=source)
    if not wanted.strip():
        raise UsageError(f"{source} {text!r}: say for what, for example {pattern}:/absolute/folder")
    return Rule(Effect.ALLOW, pattern, scope=_read_scope(wanted.strip(), f"{source} {text!r}", home), source=source)


def _read_scope(wanted: str, place: str, home: str) -> Scope:
    if "*" in wanted.removeprefix("host:*."):
        raise UsageError(f"{place}: a scope is one folder, file or host, not a pattern; write it out")
    for kind in (ScopeKind.HOST, ScopeKind.EXACT):
        prefix = f"{kind}:"
        if wanted.startswith(prefix):
            value = wanted[len(prefix) :].strip()
            if not value or value == "*.":
                raise UsageError(f"{place}: nothing stands after {prefix!r}")
            return Scope(kind, value)
    return Scope(ScopeKind.PATH, _read_folder(wanted, place, home))


def _read_folder(wanted: str, place: str, home: str) -> str:
    own_home = home or str(Path.home())
    expanded = own_home + wanted[1:] if wanted == "~" or wanted.startswith("~/") else wanted
    if not expanded.startswith("/") or "\0" in expanded:
        raise UsageError(
            f"{place}: {wanted!r} is not an absolute path; write {str(Path.cwd() / wanted)!r}, host:NAME or exact:TEXT"
        )
    # Targets are resolved, so the rule is too; a link put there later leads out of the rule, not along with it.
    folder = str(Path(os.path.realpath(expanded)))
    if is_too_wide(folder, os.path.realpath(own_home)) or not is_normal(folder):
        raise UsageError(
            f"{place}: {folder!r} is too wide (the file system, a home, or a folder around it); name a folder inside"
        )
    return folder


def _default(mode: Mode, facts: Facts) -> PolicyVerdict:
    for applies, why in (
        (facts.is_dangerous, "it is dangerous"),
        (facts.risk is Risk.CRITICAL, "its risk is critical"),
        (facts.hook_asks, "a hook or the tool itself wants it to be asked"),
        (not facts.is_read, "it writes"),
        (facts.is_open_world, "it reaches the network"),
        (facts.target.is_sensitive, "its target is sensitive"),
        (not facts.target.is_inside_roots, "its target lies outside the roots"),
        (mode is Mode.STRICT and facts.risk > Risk.READ, "strict mode asks for everything above reading"),
    ):
        if applies:
            return PolicyVerdict(Effect.ASK, "default", "runtime", f"{why}, which asks by default")
    return PolicyVerdict(Effect.ALLOW, "default", "runtime", "it only reads")


def _may_be_allowed(mode: Mode, facts: Facts) -> bool:
    """Say whether a rule could replace a person's yes: never for dangerous or critical calls, never in strict mode."""
    return not (facts.is_dangerous or facts.risk is Risk.CRITICAL or facts.hook_asks or mode is Mode.STRICT)


def _answers(rule: Rule, facts: Facts) -> bool:
    if facts.target.is_sensitive:
        # A rule for a folder was not written with the keys in it in mind: it has to name them.
        return rule.scope is not None and rule.scope.names(facts.target)
    return rule.scope is not None or facts.is_read


def _matching(rules: Iterable[Rule], effect: Effect, facts: Facts) -> list[Rule]:
    """Return the matching rules in an order of their own, so that the order of writing decides nothing."""
    return sorted(
        (rule for rule in rules if rule.effect is effect and rule.matches(facts)),
        key=lambda rule: (str(rule), rule.source),
    )


def _first(rules: Iterable[Rule], effect: Effect, facts: Facts) -> Rule | None:
    return next(iter(_matching(rules, effect, facts)), None)


def _by_rule(rule: Rule, reason: str) -> PolicyVerdict:
    return PolicyVerdict(rule.effect, str(rule), rule.source, reason)


def _read_rule(position: int, value: Json) -> Rule:
    place = f"policy: rule {position + 1}"
    if not isinstance(value, Mapping):
        raise InvalidConfigError(f"{place} is not an object")
    unknown = sorted(set(value) - {"effect", "pattern", "tags", "scope", "source"})
    if unknown:
        raise InvalidConfigError(f"{place} has unknown fields: {', '.join(unknown)}")
    tags, pattern = value.get("tags", ()), value.get("pattern")
    if not isinstance(pattern, str) or not pattern or isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidConfigError(f"{place}: pattern is text and tags a list, not {pattern!r} and {tags!r}")
    try:
        effect = Effect(str(value.get("effect")))
    except ValueError as error:
        raise InvalidConfigError(f"{place}: effect {value.get('effect')!r} is not deny, ask or allow") from error
    scope = _read_stored_scope(value.get("scope"), place)
    return Rule(effect, pattern, frozenset(map(str, tags)), scope, str(value.get("source", "config")))


def _read_stored_scope(value: Json, place: str) -> Scope | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and value.get("kind") in set(ScopeKind) and isinstance(value.get("value"), str):
        return Scope(ScopeKind(str(value["kind"])), str(value["value"]))
    raise InvalidConfigError(f"{place}: the scope {value!r} is not {{kind: path|host|exact, value: text}}")
