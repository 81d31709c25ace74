"""The paths that a session's rules withhold from its reads: a search from above a folder shows none of them.

Pure. A rule decides on calls by the path that a call names; a search and a recursive listing reach unnamed paths, so
their tools get the list of what to leave out.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, Rule, is_of_step
from soong.shared.permissions.scope import ScopeKind
from soong.shared.tools.definition import Permission, ToolDefinition, Withheld

_EVERYTHING = Path("/")


def withheld_by_rule(policy: Policy, tools: Iterable[ToolDefinition], step: str) -> tuple[Withheld, ...]:
    """Return what deny and ask rules keep from the tools that read, for the run of a step (its key, or empty)."""
    rules = [rule for rule in policy.rules if not rule.step or is_of_step(step, rule.step)]
    if not rules:
        return ()
    reading = [tool for tool in tools if tool.permission is Permission.READONLY]
    found = (_withheld(rule, reading) for rule in rules)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _withheld(rule: Rule, reading: Iterable[ToolDefinition]) -> Withheld | None:
    if rule.effect is Effect.ALLOW or (rule.scope is not None and rule.scope.kind is not ScopeKind.PATH):
        return None
    tools = frozenset(tool.name for tool in reading if fnmatchcase(tool.name, rule.pattern) and rule.tags <= tool.tags)
    path = _EVERYTHING if rule.scope is None else Path(rule.scope.value)
    return Withheld(path, tools, is_asked=rule.effect is Effect.ASK) if tools else None
