"""The reach of a permission: rules name a scope, calls have a target (PER-04, PER-08).

Owns containment and the question when a session grant may be offered. Everything is compared in resolved form; no file
system is touched here: tools resolve their targets, :mod:`soong.shared.permissions.policy` resolves the rules of a
command line.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from soong.shared.core.jsontext import is_told_apart
from soong.shared.core.value import Value
from soong.shared.permissions.request import Decision, PermissionRequest
from soong.shared.sandbox.hosts import is_host_within
from soong.shared.tools.definition import Target

MAX_GRANT_CHARS: Final = 4_000
"""A session grant that is longer is not offered: a person could not read what it covers."""
_UNREADABLE: Final = "\ufffd"
"""Stands for what could not be read, which differs from name to name."""


class ScopeKind(StrEnum):
    """How a scope contains: a path by its components, a host by its labels, anything else by equality."""

    PATH = "path"
    HOST = "host"
    EXACT = "exact"


class Scope(Value):
    """The limit of a rule. Paths are absolute and resolved; ``*.example.org`` is any host below example.org."""

    kind: ScopeKind
    value: str

    def covers(self, target: Target) -> bool:
        """Say whether all that the target touches lies in this scope."""
        if self.kind is ScopeKind.PATH:
            return target.kind == "path" and any(is_within(path, self.value) for path in _paths_of(target))
        if self.kind is ScopeKind.HOST:
            return bool(target.host) and is_host_within(target.host, self.value)
        return target.kind != "path" and self.value in {target.scope, target.shown} - {""}

    def names(self, target: Target) -> bool:
        """Say whether this scope is the very target, not something around it."""
        if self.kind is ScopeKind.PATH:
            return target.kind == "path" and self.value in _paths_of(target)[-1:]
        return self.covers(target)

    def __str__(self) -> str:
        return self.value if self.kind is ScopeKind.PATH else f"{self.kind}:{self.value}"


def is_within(path: str, folder: str) -> bool:
    """Say whether ``path`` is ``folder`` or below it, by components: ``/a/bc`` is not within ``/a/b``. Both must be
    absolute and in normal form; a path with ``..`` in it is within nothing.
    """
    if not (is_normal(path) and is_normal(folder)):
        return False
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))


def is_normal(path: str) -> bool:
    """Say whether a path is absolute and has no ``.``, ``..``, doubled or trailing slash in it."""
    # normpath keeps exactly two leading slashes (POSIX leaves their meaning open).
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path


def offered_scope(target: Target, home: str) -> str:
    """Return what a session grant would cover, or nothing when none may be offered (PER-08).

    Never for a target without a scope, for ``/``, for a home or a folder that contains one, nor for a pattern; nor for
    one that a person could take for another. It is the target's own scope, character by character: two targets share a
    grant only if their scopes are equal.
    """
    scope = target.scope
    if not scope or "*" in scope or not _is_told_apart(scope):
        return ""
    if target.kind == "path" and not is_normal(scope):
        return ""
    # A resource or command scope that is a whole disk or home is as wide as a folder's.
    return "" if is_normal(scope) and is_too_wide(scope, home) else scope


def is_too_wide(folder: str, home: str) -> bool:
    """Say whether a folder is the entire file system, a home (anybody's), or contains one."""
    parts = PurePosixPath(folder).parts
    is_some_home = parts == ("/", "root") or (len(parts) <= 3 and parts[1:2] in {("home",), ("Users",)})
    return folder == "/" or is_some_home or (is_normal(home) and is_within(home, folder))


def _paths_of(target: Target) -> list[str]:
    """Return the target's folder and, where it is named exactly, the thing itself; the most exact last."""
    return [path for path in (target.scope, target.shown) if is_normal(path)]


def _is_told_apart(scope: str) -> bool:
    """Say whether a scope looks like no other on a screen: no blank at its ends, nothing invisible, no control."""
    is_read = is_told_apart(scope) and _UNREADABLE not in scope and len(scope) <= MAX_GRANT_CHARS
    return is_read and scope == scope.strip()


class Grant(Value):
    """An allow_for_session decision: this tool, on exactly this scope. ``decision_id`` names where it comes from."""

    tool: str
    scope: str
    principal: str
    decision_id: str


@dataclass(slots=True)
class GrantBook:
    """The grants of one session under one ownership. Dies with its owner: a successor asks again."""

    _grants: dict[tuple[str, str], Grant] = field(default_factory=dict)

    def add(self, grant: Grant) -> None:
        """Remember a grant; the first for a tool and scope counts.
        Raises: ValueError, a grant without a tool or scope would cover everything.
        """
        if not grant.tool or not grant.scope:
            raise ValueError(f"a grant needs a tool and a scope, not {grant!r}")
        self._grants.setdefault((grant.tool, grant.scope), grant)

    def remember(self, decision: Decision) -> None:
        if decision.choice.is_grant:
            self.add(Grant(decision.tool, decision.scope, decision.principal, decision.id))

    def covering(self, request: PermissionRequest) -> Grant | None:
        return self.find(request.tool, request.scope)

    def find(self, tool: str, scope: str) -> Grant | None:
        return self._grants.get((tool, scope))

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants.values())

    def __len__(self) -> int:
        return len(self._grants)
