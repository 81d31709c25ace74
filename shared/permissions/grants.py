"""The session's grants: what was allowed for the session, in the owner's memory and nowhere else (PER-04, PER-07)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from soong.shared.core.value import Value
from soong.shared.permissions.request import Decision, PermissionRequest


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

        Raises:
            ValueError: a grant without a tool or scope would cover everything.
        """
        if not grant.tool or not grant.scope:
            raise ValueError(f"a grant needs a tool and a scope, not {grant!r}")
        self._grants.setdefault((grant.tool, grant.scope), grant)

    def remember(self, decision: Decision) -> None:
        """Remember what a decision grants, if it grants anything."""
        if decision.choice.is_grant:
            self.add(Grant(decision.tool, decision.scope, decision.principal, decision.id))

    def covering(self, request: PermissionRequest) -> Grant | None:
        """Return the grant that answers a question."""
        return self.find(request.tool, request.scope)

    def find(self, tool: str, scope: str) -> Grant | None:
        """Return the grant for exactly this tool and scope."""
        return self._grants.get((tool, scope))

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants.values())

    def __len__(self) -> int:
        return len(self._grants)
