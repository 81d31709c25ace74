"""The input of the agent loop, its ports to the layer above, and the end of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from soong.shared.agents.definition import AgentLimits, Compaction, ModelOptions, Price
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent, NewNode, Node
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.step import Outcome, StepError
from soong.shared.tools.deferred import DeferredTools
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ToolCall

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent

GIVEN_UP: Final = "run_ends_because"
"""In the data of a run's report on its own step: why the step cannot be done. The run ends, and its step fails so."""


class AgentTask(Value):
    """One run's work. ``tools`` is its surface in the order a model sees it; ``run_dirs`` is sent to the model.

    ``output_schema`` None takes the model's text as the output, or the JSON object or array that the text is.
    """

    identity: RunIdentity
    system: str
    instructions: str
    inputs: JsonObject
    tools: Sequence[ToolDefinition]
    run_dirs: JsonObject = msgspec.field(default_factory=dict)
    deferred: DeferredTools = msgspec.field(default_factory=DeferredTools)
    """Those of the tools that the model finds before it sees their schemas."""
    output_schema: JsonObject | None = None
    limits: AgentLimits = msgspec.field(default_factory=AgentLimits)
    options: ModelOptions = msgspec.field(default_factory=ModelOptions)
    compaction: Compaction = msgspec.field(default_factory=Compaction)
    price: Price | None = None
    """The configuration's own for its model."""
    is_streamed: bool = True
    """Answers arrive piece by piece where the model can; False asks for them in one piece."""
    is_resumed: bool = False
    is_limited: bool = False
    """Its task has limits: the turns of a scripted agent count, too."""


class RunTranscript(Protocol):
    """The run's context tree and log, under its fence."""

    async def nodes(self) -> Sequence[Node]:
        """Return the run's nodes in order. Read when a run is resumed, and when a history is made shorter."""
        ...

    async def calls(self) -> Sequence[CallRow]:
        """Return the ledger of the run's calls. Asked once, of a resumed run with unfinished calls."""
        ...

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        """Append in one transaction, after whatever the call log has kept back, without secrets.

        ``calls`` are about to be made; arguments that the nodes do not hold in full are kept apart until they
        end (EVT-05), and come back as ``open_input`` of :meth:`calls`. Raises: LeaseLostError.
        """
        ...


class AnswerFollower:
    """Sees an answer while it arrives; this one does nothing with it."""

    def take(self, event: "ModelResponseStreamEvent") -> None:
        """Take the next piece, at once: the stream waits."""

    async def discard(self) -> None:
        """Forget what has arrived of an answer: it broke off, or nobody waits for it any more."""


class AnswerView(AnswerFollower):
    """Shows people an answer while it arrives; this one shows nobody anything."""

    def begin(self, turn: int) -> None:
        """Take the pieces that follow as those of this turn's answer."""

    def complete(self) -> None:
        """Show the rest: the answer has arrived."""


NO_FOLLOWER: Final = AnswerFollower()


class AgentEnd(Value):
    """How a run ended. ``nodes`` and ``events`` are not written yet: they go into the step's end.

    ``denials`` and ``unknown_effects`` say what was refused and what may or may not have happened (DAG-10); with any of
    them a completed step is PARTIAL. ``error`` is set exactly when ``end_reason`` is not COMPLETED.
    """

    end_reason: EndReason
    output: Json = None
    outcome: Outcome = Outcome.CLEAN
    usage: Usage = msgspec.field(default_factory=Usage)
    denials: Sequence[JsonObject] = ()
    unknown_effects: Sequence[JsonObject] = ()
    error: StepError | None = None
    nodes: tuple[NewNode, ...] = ()
    events: tuple[NewEvent, ...] = ()
