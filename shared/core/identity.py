"""The identity of a run: the lineage that its calls, requests and events carry (CARD-3)."""

from enum import StrEnum
from typing import Final

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value


class Role(StrEnum):
    """The role of an agent in its session (DIS-06). Hard rules of the surface depend on it (ETS-06)."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"
    WORKER = "worker"

    @property
    def is_child(self) -> bool:
        """Say whether the hard limits of sub, fork and worker agents apply."""
        return self in (Role.SUB, Role.FORK, Role.WORKER)


class Origin(Value):
    """The origin of a run: the principal whose submission, retry or dispatch made it.

    ``is_foreign``: this principal is not on the session's side: neither the session's own nor an approver there. The
    session's grants and allow rules are that side's consent, so they answer for no foreign run.
    """

    principal: str = ""
    is_foreign: bool = False


OWN: Final = Origin()
"""The session's own side, without a principal."""


class RunIdentity(Value):
    """One run and where it comes from, read from its row and never from a message.

    ``task_id``, ``step_key`` and ``step_title`` are empty for a run without a step; the parents are empty for the
    session's first run.
    """

    session_id: str
    run_id: str
    agent_id: str
    role: Role
    definition: str
    parent_run_id: str = ""
    parent_agent_id: str = ""
    task_id: str = ""
    step_key: str = ""
    step_title: str = ""
    model: str = ""
    origin: Origin = OWN

    def as_json(self) -> dict[str, Json]:
        """Return the fields under their own names, for payloads and events."""
        told: dict[str, Json] = {name: str(getattr(self, name)) for name in self.__struct_fields__ if name != "origin"}
        return {**told, "dispatched_by": self.origin.principal, "is_foreign": self.origin.is_foreign}
