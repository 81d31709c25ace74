"""Asks: tasks whose root run is an agent with a goal, which the session's owner runs itself (DIS-01).

An ask has no plan. Its steps are the children that its agent starts. The tasks that it makes have its run as the parent
of their root runs. Its root run is held as a step's run is, under a fence that each owner that takes it up raises.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import convert

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import StepSpec, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepEnd

SPEC: Final = "ask"
"""The key of the agent's work in the document of an ask, its task's ``plan``."""
FOLLOWS: Final = "follows"
"""The input of an ask that names the run whose conversation it continues."""


class OpenAsk(Value):
    """An ask that has not ended: running, or paused."""

    task_id: str
    run_id: str
    status: TaskStatus
    aborts: tuple[CallAbort, ...] = ()
    """The calls of its agent that a person aborted."""


class AskStore(Protocol):
    """The rows of asks, for the owner of their sessions. All raise NotOwnerError, and UnavailableError."""

    async def open_asks(self, ownership: Ownership) -> Sequence[OpenAsk]:
        """Return the asks of the session that have not ended, oldest first."""

    async def take_up(self, ownership: Ownership, task_id: str, *, now_us: int) -> Claim | None:
        """Hold the root run of a running ask under a new fence, also one that another process holds. None: it ended.

        The claim's step key is empty: no step is behind it.
        """

    async def put_down(self, ownership: Ownership, run_id: str, fence: int) -> None:
        """Put a run that is held under this fence back in the queue: its ask is paused, or goes to another owner."""

    async def end_ask(self, ownership: Ownership, task_id: str, end: StepEnd, *, now_us: int) -> frozenset[str]:
        """End an ask as its run ended, and cancel what is left of its steps; return the workers that hold some.

        One that has ended already stays as it is.
        Raises: LeaseLostError when the run is not held under the end's fence.
        """


def follows(inputs: JsonObject) -> str:
    """Return the run whose conversation an ask with these inputs continues; empty: it begins one."""
    return str(inputs.get(FOLLOWS, ""))


def ask_document(spec: StepSpec) -> JsonObject:
    """Return what an ask's task stores in place of a plan."""
    return {SPEC: spec.as_json()}


def spec_of_ask(document: JsonObject) -> StepSpec:
    """Return what the agent of an ask is to do."""
    return convert(document[SPEC], StepSpec)
