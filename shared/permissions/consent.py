"""Step-wise consent: the preview of a plan, and a person's one answer per step as rules of policy (PER-17).

Values only. How scopes are resolved and judged is :mod:`soong.shared.permissions.preview`. A consent is policy and
no grant: its rules are in the session's row, bound to the step, and survive whatever process there is.
"""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from soong.shared.core.errors import UsageError
from soong.shared.core.identity import step_key
from soong.shared.core.jsontext import Json, digest
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind, is_normal, is_too_wide

PREVIEW_VERSION: Final = 1


class PermissionKind(StrEnum):
    """A kind of permission that a step may declare; the words are those of plans."""

    WRITE = "write"
    HOSTS = "hosts"
    RUN = "run"


class CheckedPermission(Value):
    """One scope that a step names, as it is now.

    ``given`` is the plan's word for it, ``shown`` the exact thing: a resolved path, a host, a program with its argv;
    empty while it is not known. ``effect`` is the policy's current verdict, with ``rule`` and ``reason``. ``tools`` are
    those of the step that would use it. ``scope`` is what a yes beforehand would cover, for ``grantable`` of the tools;
    None when none can be given: it is refused, allowed already, or asked each time.
    """

    kind: PermissionKind
    given: str
    shown: str
    effect: Effect
    reason: str
    rule: str = ""
    source: str = ""
    is_outside: bool = False
    tools: tuple[str, ...] = ()
    scope: Scope | None = None
    grantable: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {**super().as_json(), "scope": self.scope and str(self.scope)}


class StepGrant(Value):
    """A person's yes to what one step was shown to ask for: tools, each on exactly these scopes."""

    step_id: str
    scopes: tuple[tuple[str, Scope], ...]

    @property
    def digest(self) -> str:
        """Return what names exactly this yes."""
        words = [self.step_id, *([tool, str(scope)] for tool, scope in self.scopes)]
        return digest(json.dumps(words))  # as escapes: a name on a disk may hold half a character

    def rules(self, task_id: str, *, principal: str, now_us: int, home: str) -> tuple[Rule, ...]:
        """Return the rules that this is in the policy of the task's session.
        Raises: UsageError, a scope is wider than anything that may be granted (PER-08).
        """
        source = f"step consent by {principal} at {rfc3339(now_us)}"
        key = step_key(task_id, self.step_id)
        for tool, scope in self.scopes:
            is_glob = "*" in tool or (scope.kind is not ScopeKind.EXACT and "*" in scope.value)
            is_path = scope.kind is ScopeKind.PATH
            is_wide = is_path and (not is_normal(scope.value) or is_too_wide(scope.value, home))
            if not tool or not scope.value.strip() or is_glob or is_wide:
                raise UsageError(f"step {self.step_id!r}: {tool}:{scope} is too wide to be allowed for a step")
        return tuple(Rule(Effect.ALLOW, tool, scope=scope, source=source, step=key) for tool, scope in self.scopes)


class StepPreview(Value):
    """The permissions that one step declares. ``may_ask`` are its undeclared tools that can ask at run time."""

    step_id: str
    title: str
    kind: str
    permissions: tuple[CheckedPermission, ...] = ()
    may_ask: tuple[str, ...] = ()

    @property
    def grantable(self) -> tuple[CheckedPermission, ...]:
        return tuple(one for one in self.permissions if one.scope is not None)

    @property
    def grant(self) -> StepGrant:
        """Return the yes to all that may be granted here; it may be none."""
        pairs = ((tool, one.scope) for one in self.permissions if one.scope is not None for tool in one.grantable)
        return StepGrant(self.step_id, tuple(dict.fromkeys(pairs)))

    def as_json(self) -> dict[str, Json]:
        return {
            "id": self.step_id,
            "title": self.title,
            "kind": self.kind,
            "permissions": [one.as_json() for one in self.permissions],
            "may_ask": list(self.may_ask),
            "is_grantable": bool(self.grantable),
        }


class Preview(Value):
    """The permissions that a plan's steps declare, before anything starts."""

    title: str
    steps: tuple[StepPreview, ...]

    def union(self, kind: PermissionKind) -> tuple[CheckedPermission, ...]:
        """Return what all steps together ask for, each thing once; the hardest verdict of those that name it."""
        found: dict[str, CheckedPermission] = {}
        for one in (one for step in self.steps for one in step.permissions if one.kind is kind):
            before = found.setdefault(one.shown or one.given, one)
            if _SEVERITY[one.effect] > _SEVERITY[before.effect]:
                found[one.shown or one.given] = one
        return tuple(found.values())

    def grants(self, step_ids: Iterable[str]) -> tuple[StepGrant, ...]:
        """Return the yes to these steps, as they are shown here.
        Raises: UsageError, a step does not exist, declares no permissions, or declares none that can be granted.
        """
        by_id = {step.step_id: step for step in self.steps}
        chosen: list[StepGrant] = []
        for step_id in dict.fromkeys(step_ids):
            if step_id not in by_id:
                raise UsageError(f"the plan has no step {step_id!r}; {suggestion(step_id, by_id)}")
            step = by_id[step_id]
            if not step.permissions:
                raise UsageError(f"step {step_id!r} does not say what it asks for; write `permissions:` into the plan")
            if not step.grantable and any(one.effect is not Effect.ALLOW for one in step.permissions):
                why = "; ".join(dict.fromkeys(f"{one.shown or one.given}: {one.reason}" for one in step.permissions))
                raise UsageError(f"nothing that step {step_id!r} asks for can be allowed beforehand: {why}")
            chosen.append(step.grant)
        return tuple(grant for grant in chosen if grant.scopes)

    def as_json(self) -> dict[str, Json]:
        """Return a stable form, for programs; ``v`` grows when a field changes its meaning."""
        union: dict[str, Json] = {str(kind): [one.as_json() for one in self.union(kind)] for kind in PermissionKind}
        return {
            "v": PREVIEW_VERSION,
            "title": self.title,
            "union": union,
            "steps": [step.as_json() for step in self.steps],
        }


_SEVERITY: Final = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.DENY: 2}


def distinct(permissions: Sequence[CheckedPermission]) -> tuple[CheckedPermission, ...]:
    """Return each thing once: the items of a map may name the same."""
    found: dict[tuple[PermissionKind, str], CheckedPermission] = {}
    for one in permissions:
        found.setdefault((one.kind, one.shown or one.given), one)
    return tuple(found.values())
