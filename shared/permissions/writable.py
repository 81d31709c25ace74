"""What the rules of a session let its runs write without asking: programs are not taken from there by their names.

Pure. Which folders a run may write anyway is :mod:`soong.shared.sandbox.paths`.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.permissions.scope import ScopeKind
from soong.shared.tools.definition import Permission, ToolDefinition


def writable_by_rule(policy: Policy, tools: Iterable[ToolDefinition]) -> tuple[Path, ...]:
    """Return the files and folders that an allow rule opens to a tool that writes, whichever run has that tool.

    What one run of a session writes another one finds, so a rule for one step counts for all of them.
    """
    rules = [rule for rule in policy.rules if rule.effect is Effect.ALLOW and _is_of_a_path(rule)]
    if not rules:
        return ()
    writing = [tool for tool in tools if tool.permission is Permission.WRITE]
    paths = (rule.scope.value for rule in rules if rule.scope is not None and _speaks_of(rule, writing))
    return tuple(map(Path, dict.fromkeys(paths)))


def _is_of_a_path(rule: Rule) -> bool:
    return rule.scope is not None and rule.scope.kind is ScopeKind.PATH


def _speaks_of(rule: Rule, tools: Iterable[ToolDefinition]) -> bool:
    return any(fnmatchcase(tool.name, rule.pattern) and rule.tags <= tool.tags for tool in tools)
