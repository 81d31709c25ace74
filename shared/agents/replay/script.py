"""The lives of a run; its model's answers and failures in each, in order; and a model that gives them again.

The failures are those in the log. Their kind follows from the run's next act: it sent the request again, made its
history shorter, continued with another model, or ended.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic_ai.exceptions import AgentRunError, ModelAuthenticationError, ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters

from soong.shared.agents.compaction import IS_INHERITED, inherited, summary_of
from soong.shared.agents.messages import answer_of, is_of_a_call
from soong.shared.agents.model import SCRIPT
from soong.shared.agents.model_request import BrokenAnswerError
from soong.shared.agents.requests import Reserved
from soong.shared.agents.run_models import Fallbacks, RunModel
from soong.shared.agents.runtime.prepared import ModelRules
from soong.shared.agents.scripted_model import LocalModel
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.errors import ScriptFailedError
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import BudgetSpentError, Charge
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.runs.record import EndReason, Run
from soong.shared.engine.runs.store import CallRow

CALL_ENDS: Final = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED})
_BEGINNINGS: Final = frozenset({EventType.RUN_STARTED, EventType.RUN_RESUMED})


@dataclass(slots=True)
class Failure:
    """A request that got no answer. ``next`` is the type of the event of the run's next act."""

    message: str
    status: int
    is_retried: bool
    next: str = ""

    def error(self, model: str) -> Exception:
        """Return what the model raises, so that the loop does again what it did."""
        error: Exception
        if self.is_retried:
            error = _PassingError(self.message)
        elif self.next == EventType.CONTEXT_COMPACTED:
            error = _RecordedFullError(model, self.message)
        elif self.next == EventType.MODEL_FALLBACK:
            error = _OfAccountError(model, self.message)
        else:
            error = AgentRunError(self.message)
        error.status_code = self.status  # type: ignore[attr-defined]  # where the loop looks for it
        return error


class _PassingError(BrokenAnswerError):
    """After it the request was sent again; the pause is over."""

    retry_after = 0.0


class _RecordedFullError(ModelContextWindowExceededError):
    def __str__(self) -> str:
        return self.message


class _OfAccountError(ModelAuthenticationError):
    def __str__(self) -> str:
        return self.message


class Life(Value):
    """One life of a run. ``before`` are the nodes that it began with, ``nodes`` those that it wrote.

    ``is_whole``: its loop ended the run. Otherwise its process stopped somewhere, and so does its record.
    """

    before: Sequence[Node]
    nodes: Sequence[Node]
    events: Sequence[Event]
    is_whole: bool

    @property
    def ended_calls(self) -> frozenset[str]:
        return frozenset(call_id for event in self.events if event.type in CALL_ENDS and (call_id := call_of(event)))


@dataclass(slots=True)
class ModelScript:
    """The remaining answers and failures of a life; ``stopped`` is set where the record of the life stops."""

    turns: deque[ModelResponse | Failure]
    shares: dict[int, float]
    """The part of its budgets that the run was warned of, by how many turns were over then."""
    end_reason: EndReason | None
    """How the run ended in this life; None: it did not."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    taken: int = 0
    """How many turns are over."""

    @classmethod
    def of(cls, life: Life) -> "ModelScript":
        answers = deque(node for node in life.nodes if node.kind in (NodeKind.ASSISTANT, NodeKind.COMPACTION))
        turns: deque[ModelResponse | Failure] = deque()
        shares: dict[int, float] = {}
        for event in life.events:
            if event.type == EventType.MODEL_FAILED and not event.data.get("attempt"):
                continue  # a fallback that could not be opened: it was not asked
            last = turns[-1] if turns else None
            if isinstance(last, Failure) and not last.is_retried and not last.next:
                last.next = event.type
            if event.type == EventType.MODEL_FAILED:
                turns.append(_failure(event))
            elif event.type == EventType.BUDGET_WARNED:
                shares[len(turns)] = float(cast(Any, event.data.get("share", 0)))
            elif event.type in (EventType.MODEL_RESPONDED, EventType.CONTEXT_COMPACTED) and answers:
                answer = _answer(answers.popleft())
                if answer is not None:
                    turns.append(answer)
        return cls(turns, shares, _end_reason(life.events) if life.is_whole else None)

    async def next(self, model: str) -> ModelResponse:
        """Return the next answer, or raise the next failure; at the end of the record, wait to be cancelled."""
        if not self.turns:
            if model == SCRIPT and self.end_reason is EndReason.FAILED:
                raise ScriptFailedError("as recorded")
            self.check_spent()  # between two attempts
            await self.stop()
        turn = self.turns.popleft()
        self.taken += 1
        if isinstance(turn, Failure):
            raise turn.error(model)
        return turn

    def check_spent(self) -> None:
        """Raises: BudgetSpentError, where that ended the run."""
        spent = None if self.turns else _SPENT.get(self.end_reason)
        if spent is not None:
            raise BudgetSpentError("as recorded", of=spent)

    async def stop(self) -> None:
        """Say that the record of the life stops here, and wait to be cancelled."""
        self.stopped.set()
        await asyncio.Event().wait()


class RecordedModel(LocalModel):
    """Answers as the run's model did, in its order, whatever it is asked."""

    def __init__(self, name: str, script: ModelScript) -> None:
        super().__init__(name)
        self.script = script

    async def answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        del messages, parameters
        return await self.script.next(self.model_name)


_SPENT: Final[Mapping[EndReason | None, str]] = {
    EndReason.COST_LIMIT: "money",
    EndReason.TOKEN_LIMIT: "tokens",
    EndReason.MAX_TURNS: "turns",
}
"""The kind of budget that was used up, by the end of the run that it caused."""


@dataclass(slots=True)
class RecordedBudgets:
    """The budgets of a run as it met them: warned where it was, spent where that ended it."""

    script: ModelScript

    async def reserve(self, charge: Charge) -> Reserved | None:
        del charge
        self.script.check_spent()
        share = self.script.shares.get(self.script.taken)
        return None if share is None else Reserved(0, share)

    async def settle(self, reserved: Reserved, charge: Charge) -> None:
        """Nothing is charged twice."""


def fallbacks_of(life: Life, script: ModelScript, rules: ModelRules) -> Fallbacks:
    events = [event for event in life.events if event.type == EventType.MODEL_FALLBACK]
    names = tuple(dict.fromkeys(str(event.data.get("to")) for event in events))

    async def open_(name: str) -> RunModel:
        return RunModel(name, RecordedModel(name, script), rules.price(name), rules.window(name))

    return Fallbacks(names, open_, rules.price)


def _failure(event: Event) -> Failure:
    status = event.data.get("status", 0)
    is_retried = event.data.get("is_retried") is True
    return Failure(str(event.data.get("message", "")), status if isinstance(status, int) else 0, is_retried)


def _answer(node: Node) -> ModelResponse | None:
    if node.kind is NodeKind.COMPACTION:
        return summary_of(node)
    return answer_of(node.payload["message"])


def _end_reason(events: Sequence[Event]) -> EndReason | None:
    ended = [event for event in events if event.type in (EventType.RUN_COMPLETED, EventType.RUN_FAILED)]
    reason = str(ended[-1].data.get("end_reason", "")) if ended else ""
    return EndReason(reason) if reason in set(EndReason) else None


class RunRecord(Value):
    """All that the rows keep of one run."""

    run: Run
    nodes: Sequence[Node]
    events: Sequence[Event]
    calls: Sequence[CallRow]


def call_of(event: Event) -> str:
    """Return the id of the call that an event is about; empty for an event of the run."""
    return str(event.data.get("tool_call_id") or "")


def lives_of(record: RunRecord) -> list[Life]:
    """Return the lives of a run, in order. A run that has never begun has none."""
    starts = [place for place, event in enumerate(record.events) if event.type in _BEGINNINGS]
    ends = [*starts[1:], len(record.events)]
    first = sum(1 for node in record.nodes if inherited(node))
    # The words that a fork or a follow-up was given with what it inherits.
    first += any(node.payload.get(IS_INHERITED) is True for node in record.nodes)
    lives: list[Life] = []
    for start, end in zip(starts, ends, strict=True):
        events = record.events[start:end]
        last = _last_node(record.nodes, first, events)
        nodes = record.nodes[first:last]
        is_whole = any(node.kind is NodeKind.RESULT for node in nodes)
        lives.append(Life(record.nodes[:first], nodes, events, is_whole))
        first = last
    return lives


def _last_node(nodes: Sequence[Node], first: int, events: Sequence[Event]) -> int:
    """Return where the nodes of a life end that begin at ``first``: after the last that one of its events tells of."""
    answers = sum(event.type == EventType.MODEL_RESPONDED for event in events)
    compactions = sum(event.type == EventType.CONTEXT_COMPACTED for event in events)
    ended = {call_of(event) for event in events if event.type in CALL_ENDS}
    is_ended = any(event.type in (EventType.RUN_COMPLETED, EventType.RUN_FAILED) for event in events)
    last = first
    for place in range(first, len(nodes)):
        node = nodes[place]
        if node.kind is NodeKind.ASSISTANT:
            answers -= 1
            is_told = answers >= 0
        elif is_of_a_call(node) and node.payload.get("tool") != FINAL_TOOL:
            is_told = str(node.payload.get("tool_call_id")) in ended
        elif node.kind is NodeKind.COMPACTION:
            compactions -= 1
            is_told = compactions >= 0
        elif node.kind is NodeKind.RESULT:
            is_told = is_ended
        else:
            continue  # written with what follows it: it opens the run, or asks its model again
        if not is_told:
            break
        last = place + 1
    return last
