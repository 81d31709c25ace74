"""Tasks and steps as values: the rows of a new DAG, the content of a claim, the report of an end.

Owns the shapes that cross the store port. The plan's own language is :mod:`soong.shared.engine.tasks.plan.plan`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias

import msgspec

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget
from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.engine.runs.record import EndReason, NewRun, Usage
from soong.shared.engine.tasks.spec import (
    ClaimMode,
    FailurePolicy,
    StepGate,
    StepKind,
    StepSpec,
    StepStatus,
    TaskKind,
    TaskStatus,
)


class Outcome(StrEnum):
    """How clean a completed step was (DAG-10): PARTIAL lists denials or unknown effects in its result."""

    CLEAN = "clean"
    PARTIAL = "partial"


class StepError(Value):
    """Why a step failed: ``type`` is an EndReason, an ErrorType or ``poisoned``.

    ``retryable``: the step, run once more, may end otherwise: only then do its ``retries`` count (DAG-05).
    """

    type: str
    message: str
    retryable: bool = False


class Step(Value, kw_only=True):
    """A step as stored: its spec, and what decides who runs it and when, which its owner may change.

    Until it is inserted, what its claims and ends set is left out.
    """

    key: str
    task_id: str
    session_id: str
    spec: StepSpec
    title: str
    status: StepStatus = StepStatus.PENDING
    depends_on: tuple[str, ...] = ()
    """Keys of the steps this one waits for. For a map's child: none (its map step is already unlocked)."""
    open_deps: int = 0
    """How many of them have not ended; 0 makes it ready (or expanding) at once."""
    priority: int = 0
    pool: str = "default"
    needs: tuple[str, ...] = ()
    """The capabilities that a worker must announce."""
    definition: str = ""
    model: str = ""
    run_id: str = ""
    attempt: int = 1
    max_attempts: int = 1
    on_failure: FailurePolicy = FailurePolicy.SKIP_DEPENDENTS
    lost_leases: int = 0
    lost_to: str = ""
    """Which worker lost its lease last and how that ended; empty when none did."""
    fence: int = 0
    worker_id: str = ""
    map_key: str = ""
    """For an item of a map step: the map step, and the index of the item."""
    item_index: int | None = None
    outcome: Outcome | None = None
    output: Json = None
    """Own output; None for a map step (its value is its children's outputs, see ``TaskStore.result``)."""
    error: StepError | None = None
    progress: str = ""
    started_us: int | None = None
    ended_us: int | None = None
    not_before_us: int | None = None
    is_pull_worker: bool = False
    """It stands for a run that claims other steps of its task; it is not work of the plan itself."""
    holder_run_id: str = ""
    """The run that holds or held it in addition to its own step; empty when its own run does (DAG-03)."""

    @property
    def step_id(self) -> str:
        return self.spec.id

    @property
    def kind(self) -> StepKind:
        return self.spec.kind

    @property
    def gate(self) -> StepGate:
        return self.spec.gate

    @property
    def claim_mode(self) -> ClaimMode:
        return self.spec.claim


class NewStep(Step, kw_only=True):
    """A step to be inserted, or to be tried again, with the run of that attempt; a map step has none."""

    run: NewRun | None = None


class NewTask(Value):
    """A task with all that is written with it, in one transaction. ``root_run`` dispatches: it is the parent of all."""

    id: str
    session_id: str
    title: str
    plan: JsonObject
    inputs: JsonObject
    created_us: int
    root_run: NewRun
    steps: tuple[NewStep, ...]
    kind: TaskKind = TaskKind.PLAN
    trace_parent: str = ""
    """The trace of its submitter that it belongs to (W3C trace context)."""
    limits: Budget = NO_BUDGET
    """Limits on the usage of all its runs together, and on its time (DIS-07)."""
    tags: tuple[str, ...] = ()


class Task(Value):
    """The row of a task: a DAG of steps or an ask. Times are in microseconds since 1970."""

    id: str
    session_id: str
    title: str
    status: TaskStatus
    plan: JsonObject
    inputs: JsonObject
    root_run_id: str
    created_us: int
    ended_us: int | None = None
    reason: str = ""
    """Why it failed, was cancelled or paused; who, for a person's act."""
    kind: TaskKind = TaskKind.PLAN
    trace_parent: str = ""
    tags: tuple[str, ...] = ()
    """Words by which lists are filtered, sorted."""


class OpenTask(Value):
    """A task that has not ended, without its plan: an owner looks at it again and again, however large it is."""

    id: str
    status: TaskStatus
    kind: TaskKind = TaskKind.PLAN
    has_planner: bool = False
    """Whether the run of the agent that plans it, an ask's own, is still active."""
    is_due: bool = False
    """Whether ``finish_task`` has something to write: its end, or what an open one lacks. Set by ``session_work``."""


class SessionWork(Value):
    """The work for the owner of a session, found in one read: most reads find little."""

    open_tasks: tuple[OpenTask, ...] = ()
    has_commands: bool = False
    is_expanding: bool = False
    has_failures: bool = False
    retry_us: int | None = None
    """When its next retry is due."""
    has_questions: bool = False
    has_overdue: bool = False
    """Whether a leased step of an open task has failed while its function still runs."""

    @property
    def has_asks(self) -> bool:
        return any(task.kind is TaskKind.ASK for task in self.open_tasks)

    @property
    def ends_only(self) -> bool:
        """Say whether nothing but the end of tasks is due."""
        more = self.has_commands, self.is_expanding, self.has_failures, self.retry_us is not None, self.has_asks
        return not any(more)


class StepResult(Value):
    """A finished step's result for its dependents. For a map step: the list of its children's outputs in item order.

    A step that did not end cleanly also has its error, its denials, its unknown effects, and how far it got
    (``partial``, None when it completed); a map step has those of its children (DAG-10).
    """

    step_id: str
    status: StepStatus
    output: Json
    outcome: Outcome = Outcome.CLEAN
    error: StepError | None = None
    denials: tuple[JsonObject, ...] = ()
    unknown_effects: tuple[JsonObject, ...] = ()
    partial: Json = None
    malformed: str = ""
    """The problem of its row, which some worker wrote: its dependents fail (OPS-12)."""


MALFORMED: Final = "malformed_row"
"""How a step fails whose rows no program of ours left behind like this; also the word in the security event."""

RunFence: TypeAlias = tuple[str, int]
"""Run id and fence: one life of a run."""
MAX_MESSAGE: Final = 2000
"""Characters that are kept of an error's message."""


class Lease(Value):
    """A lease named by its holder."""

    step_key: str
    run_id: str
    fence: int

    def failed(
        self, type_: str, message: str, *, retryable: bool = False, reason: EndReason = EndReason.FAILED
    ) -> "StepEnd":
        """Return the end of a failed step, with at most 2,000 characters of the message."""
        error = StepError(type_, message[:MAX_MESSAGE], retryable)
        return StepEnd(self.step_key, self.run_id, self.fence, StepStatus.FAILED, reason, error=error)


class StepEnd(Value):
    """How a claimed step ended, written in one transaction with the unlocking of its dependents."""

    step_key: str
    run_id: str
    fence: int
    status: Literal[StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED]
    end_reason: EndReason
    outcome: Outcome = Outcome.CLEAN
    output: Json = None
    error: StepError | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    nodes: tuple[NewNode, ...] = ()
    events: tuple[NewEvent, ...] = ()
    """Appended before the store's own run and step events, in the same transaction."""

    @property
    def lease(self) -> Lease:
        return Lease(self.step_key, self.run_id, self.fence)


class Claim(Value):
    """Exclusive, leased ownership of a step by its run. ``fence`` goes with every later write.

    ``is_resumed``: the run has run before (its context is to be read). ``surface`` is the effective tool set stored
    with the run; ``token`` proves the run to the owner and is shown nowhere.
    """

    UNSHOWN = frozenset({"token"})

    step_key: str
    fence: int
    identity: RunIdentity
    spec: StepSpec
    task_inputs: JsonObject
    dependencies: Mapping[str, StepResult]
    """By step id."""
    surface: JsonObject
    token: str
    attempt: int
    project: str
    cwd: str
    policy: JsonObject
    task_title: str = ""
    is_resumed: bool = False
    malformed: str = ""
    """The problem of the rows behind it, which some worker wrote: such a step is failed and not run (OPS-12)."""

    @property
    def run_fence(self) -> RunFence:
        return self.identity.run_id, self.fence

    @property
    def lease(self) -> Lease:
        return Lease(self.step_key, self.identity.run_id, self.fence)

    def completed(
        self,
        output: Json,
        *,
        outcome: Outcome = Outcome.CLEAN,
        usage: Usage | None = None,
        nodes: tuple[NewNode, ...] = (),
        events: tuple[NewEvent, ...] = (),
    ) -> StepEnd:
        """Return the end of a step that gave ``output``."""
        return StepEnd(
            self.step_key,
            self.identity.run_id,
            self.fence,
            StepStatus.COMPLETED,
            EndReason.COMPLETED,
            outcome,
            output,
            usage=usage or Usage(),
            nodes=nodes,
            events=events,
        )

    def failed(
        self, type_: str, message: str, *, retryable: bool = False, reason: EndReason = EndReason.FAILED
    ) -> StepEnd:
        """Return the end of a step that did not do what it should (:meth:`Lease.failed`)."""
        return self.lease.failed(type_, message, retryable=retryable, reason=reason)

    def aborted(self, message: str) -> StepEnd:
        """Return the end of a step whose run a person ended with its calls: it is not retried by itself (EXE-07)."""
        return self.failed(EndReason.ABORTED_TOOLS, message, reason=EndReason.ABORTED_TOOLS)

    def cancelled(self, message: str, reason: EndReason = EndReason.CANCELLED) -> StepEnd:
        """Return the end of a step that was asked to stop; ``message`` names the cause."""
        own, error = self.lease, StepError(str(reason), message)
        return StepEnd(own.step_key, own.run_id, own.fence, StepStatus.CANCELLED, reason, error=error)


class Advance(Value):
    """The result of one complete-and-claim.

    ``stale`` are the run ids whose end was refused (``lease_lost``: drop the work). ``owner_sessions`` are sessions
    with work for their owner: a map to expand, a failure to settle, or a task in which these ends opened nothing and no
    step was claimed with them, so that it may be over. ``ready_left``: claimable work is left for others. It may be
    true for work that only a concurrency limit holds back, and is never missed.
    """

    claims: tuple[Claim, ...] = ()
    stale: frozenset[str] = frozenset()
    owner_sessions: frozenset[str] = frozenset()
    ready_left: bool = False


class Interrupt(Value):
    """A held run that must stop: CANCEL and ABORT end it, PAUSE hands it back. ABORT of a call ends that call alone."""

    run_id: str
    step_key: str
    fence: int
    kind: Literal["cancel", "pause", "abort"]
    reason: str = ""
    tool_call_id: str = ""
    """The call that an abort ends; empty for the run itself."""


class BadWorker(Value):
    """A worker that was ended for its malformed row, or that was gone and held steps; ``sessions`` lost something."""

    id: str
    problem: str
    sessions: frozenset[str]


class WaitingSteps(Value):
    """Steps of one session that wait for a worker of their pool which has what they need."""

    session_id: str
    pool: str
    needs: tuple[str, ...] = ()


class Backlog(Value):
    """The work for the dispatcher: claimable steps by pool, counted to at most ``limit`` each, and their needs."""

    ready: Mapping[str, int] = msgspec.field(default_factory=dict)
    waiting: frozenset[WaitingSteps] = frozenset()


class ConcurrencyLimit(Value):
    """A limit on live leases (DIS-03).

    ``scope`` is ``session:<id>``, ``definition:<name>``, ``model:<name>`` or ``pool:<name>``; the definition of a
    python step is ``python:<function>``.
    """

    scope: str
    limit: int


NO_LIMIT: Final = 1_000_000
"""The limit of a scope that was paused and has none otherwise."""
LIMIT_KINDS: Final = ("session", "definition", "model", "pool")
"""The kinds of concurrency limits, in the order in which they are locked."""


def session_limit(session_id: str, limit: int) -> ConcurrencyLimit:
    """Return the limit on what one session has running at once (max_concurrent_children_per_session)."""
    return ConcurrencyLimit(f"session:{session_id}", limit)
