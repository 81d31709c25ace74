"""Makes the first runs of steps, with their lineage.

Every lineage of a DAG comes from here, in the session's owner or the client that makes the task, and never from a
worker.
"""

import secrets
from collections.abc import Iterator

import msgspec

from soong.shared.core.identity import OWN, Origin, Role, RunIdentity
from soong.shared.core.ids import new_id
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import NewRun


def _tokens() -> Iterator[str]:
    """Yield tokens of runs; the system is asked for many at once."""
    while True:
        many = secrets.token_hex(16 * 32)
        yield from (many[at : at + 32] for at in range(0, len(many), 32))


class Lineage(Value):
    """What all runs of one task share."""

    session_id: str
    task_id: str
    root_run_id: str
    root_agent_id: str
    project: tuple[str, ...] = ()
    """What a worker must have to work in the session's project."""
    origin: Origin = OWN
    is_limited: bool = False
    """The task has limits."""
    tokens: Iterator[str] = msgspec.field(default_factory=_tokens)

    def run(
        self, key: str, title: str, definition: str, model: str, surface: JsonObject, role: Role = Role.WORKER
    ) -> NewRun:
        """Return the first run of a step; all but ``surface`` and ``role`` are the step's own."""
        identity = RunIdentity(
            session_id=self.session_id,
            run_id=new_id("run"),
            agent_id=new_id("agent"),
            role=role,
            definition=definition,
            parent_run_id=self.root_run_id,
            parent_agent_id=self.root_agent_id,
            task_id=self.task_id,
            step_key=key,
            step_title=title,
            model=model,
            origin=self.origin,
        )
        return NewRun(identity, surface, next(self.tokens))


def new_token() -> str:
    """Return a token of a run: its secret."""
    return secrets.token_hex(16)
