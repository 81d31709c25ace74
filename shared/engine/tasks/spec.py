"""A step as planned, and the statuses of steps and tasks as tables.

The spec is the one form that a plan is read into, a step's row keeps and its worker reads (DAG-02). The documents that
people write are :mod:`soong.shared.engine.tasks.plan.fields`. Fields that an owner changes later (title, agent, model,
priority, needs) have columns of their own, which rule.

Tests and the pictures in the docs are made from the tables of statuses. Idea after h11's state tables: the table is the
only place that defines the legal changes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value

DEFAULT_DEFINITION: Final = "default_worker_agent"


class DeclaredPermissions(Value, omit_defaults=True):
    """The scopes that a step names. Each of ``run`` is a program and its arguments; nothing in it is expanded."""

    write: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    run: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.write or self.hosts or self.run)


NO_PERMISSIONS: Final = DeclaredPermissions()


class BoundStep(Value):
    """The input of a step's run: instructions and inputs with every reference looked up, once."""

    instructions: str
    inputs: JsonObject
    args: tuple[Json, ...] = ()
    """The positional arguments of a Celery task."""


class KindTraits(Value):
    """The facts of a kind of step for the engine. ``brackets`` are its shape in Mermaid."""

    brackets: tuple[str, str]
    is_round: bool = False
    """Its box in a picture has round ends."""
    noun: str = "step"
    """The word for a claimed step of this kind."""
    is_agent: bool = False
    """An agent does it, with instructions, a model, tools and permissions."""
    is_untrusted: bool = False
    """Its dependents count as having read untrusted content: its own reads are not recorded."""
    has_items: bool = False
    """It has no run: a step is made for each item, and they are its value."""


class StepKind(StrEnum):
    """AGENT runs a child agent; PYTHON calls a registered function; CELERY sends a task of the user's Celery app.

    MAP grows children and is never claimable.
    """

    AGENT = "agent"
    PYTHON = "python"
    CELERY = "celery"
    MAP = "map"

    @property
    def traits(self) -> KindTraits:
        return _TRAITS[self]


class ClaimMode(StrEnum):
    """The claimer of a step: ASSIGNED, its worker for the step's own run; PULL, a run that asks for it with a tool."""

    ASSIGNED = "assigned"
    PULL = "pull"


class FailurePolicy(StrEnum):
    """The effect of a step's final failure on the task (DAG-05)."""

    SKIP_DEPENDENTS = "skip_dependents"
    FAIL_TASK = "fail_task"
    KEEP = "keep"
    """Dependents continue with a null result: for items of a map that tolerates failures."""


class Join(StrEnum):
    """The need of a step for its dependencies (CTL-01). ANY and DONE see null for those that gave nothing."""

    ALL = "all"
    """Each completed."""
    ANY = "any"
    """All have ended, and one completed."""
    DONE = "done"
    """All have ended, however."""


class StepGate(StrEnum):
    """The opening of a step: WORKERS may claim it once its dependencies completed, or its OWNER decides it then.

    ENDED: its owner decides it once they have ended, however.
    """

    WORKERS = "workers"
    OWNER = "owner"
    ENDED = "ended"


class StepSpec(Value, omit_defaults=True):
    """The work of one step. Durations are in seconds.

    ``instructions``, ``title`` of a map's child, ``inputs`` and ``permissions`` are templates
    (:mod:`soong.shared.engine.tasks.plan.template`) until they are bound, and so are ``args``. ``agent``, ``model``,
    ``settings``, ``allowed_tools``, ``permissions``, ``script`` and ``claim`` belong to an agent step, ``call`` and
    ``isolation`` to a python step, ``call``, ``args``, ``app``, ``queue`` and ``terminate`` to a celery step, ``over``,
    ``item_name``, ``item_key``, ``step``, ``max_items``, ``on_item_failure`` and ``child_surface`` to a map step.
    """

    id: str = ""
    kind: StepKind = StepKind.AGENT
    title: str = ""
    instructions: str = ""
    depends_on: tuple[str, ...] = ()
    """Ids of steps, as planned; a row has none here, for what it waits for may grow."""
    when: str = ""
    """The condition (:mod:`soong.shared.engine.tasks.plan.condition`) without which it is skipped; empty: none."""
    join: Join = Join.ALL
    agent: str = DEFAULT_DEFINITION
    model: str = ""
    settings: JsonObject = msgspec.field(default_factory=dict)
    """Its own model settings, if any."""
    allowed_tools: tuple[str, ...] | None = None
    """None: those of the definition."""
    permissions: DeclaredPermissions = NO_PERMISSIONS
    """The permissions that it declares."""
    inputs: JsonObject = msgspec.field(default_factory=dict)
    output: JsonObject | None = None
    """The schema of the step's output."""
    priority: int = 0
    retries: int = 0
    backoff_s: float = 1.0
    timeout_s: float | None = None
    pool: str = "default"
    needs: tuple[str, ...] = ()
    on_failure: FailurePolicy | None = None
    """None: the plan has no policy, and an agent that plans the task may decide (DAG-05)."""
    call: str = ""
    isolation: str | None = None
    """``thread`` or ``process``; None: as its function was registered."""
    args: tuple[Json, ...] = ()
    """The positional arguments of its Celery task; ``inputs`` are those by keyword."""
    app: str = ""
    """The Celery app as ``module:attribute``; empty: that of the worker (``SOONG_CELERY_APP``)."""
    queue: str = ""
    """The queue of the app; empty: as the app routes the task."""
    terminate: bool = False
    """Whether a stop of the step ends the process that works on its Celery task."""
    code: str = ""
    """The version of the file that defines its function, as its submitter has it; its first attempt is of no other."""
    script: str = ""
    """The scripted agent that runs without a model (:mod:`soong.shared.engine.tasks.functions`)."""
    over: Json = None
    item_name: str = "item"
    item_key: str = ""
    step: "StepSpec | None" = None
    """The step that is made for each item of a map step."""
    max_items: int = 1000
    on_item_failure: FailurePolicy | None = None
    claim: ClaimMode = ClaimMode.ASSIGNED
    """PULL: a run that asks for the step does it with its own agent, model and tools."""
    role: Role = Role.WORKER
    """The role of its agent. The owner sets it; it is not read from a plan."""
    child_surface: JsonObject = msgspec.field(default_factory=dict)
    """The surface of the items' runs; stored, so that an expansion needs neither registry nor policy."""
    bound: BoundStep | None = None
    """Set for an item of a map step, whose templates were looked up when it was made."""
    max_steps: int | None = None
    """How many steps a pull worker may take in all; None: as many as there are."""
    is_limited: bool = False
    """Its task has limits: they are looked at before it starts, and its model turns are charged to them (DIS-07)."""

    @property
    def work(self) -> "StepSpec":
        """The step that is run: for a map step that of its items."""
        return self.step or self

    @property
    def gate(self) -> StepGate:
        if self.join is not Join.ALL:
            return StepGate.ENDED
        return StepGate.OWNER if self.when or self.kind.traits.has_items else StepGate.WORKERS

    @property
    def terms(self) -> str:
        """The condition and the join, for pictures; empty when it has none."""
        joins = {Join.ALL: "", Join.ANY: "if any completed", Join.DONE: "when all ended"}
        return ", ".join(filter(None, (joins[self.join], f"if {self.when}" if self.when else "")))

    @property
    def is_own_agent(self) -> bool:
        """Whether an agent of its own does it; a pulled step is done by the run that takes it."""
        return self.kind.traits.is_agent and self.claim is ClaimMode.ASSIGNED


_TRAITS: Final[Mapping[StepKind, KindTraits]] = {
    StepKind.AGENT: KindTraits(("[", "]"), is_agent=True),
    StepKind.PYTHON: KindTraits(("([", "])"), is_round=True, noun="function", is_untrusted=True),
    StepKind.CELERY: KindTraits(("[/", "/]"), is_round=True, noun="Celery task", is_untrusted=True),
    StepKind.MAP: KindTraits(("[[", "]]"), has_items=True),
}
"""A new kind of step is a row here, a row of ``KINDS`` in ``plan/checks.py``, and a runner in the worker."""


class TaskKind(StrEnum):
    """PLAN is a DAG of steps. ASK is a goal: its root run is an agent, which the session's owner runs."""

    PLAN = "plan"
    ASK = "ask"


class StepStatus(StrEnum):
    """The status of a step (DAG-04)."""

    PENDING = "pending"
    """Waits for dependencies (``open_deps`` > 0) or for its retry time."""
    READY = "ready"
    RUNNING = "running"
    """Claimed: its run has a worker."""
    BLOCKED = "blocked"
    """Parked: its run waits for consent and holds no slot."""
    EXPANDING = "expanding"
    """Its dependencies are done, and its owner acts: decides its condition, inserts a map step's children."""
    WAITING = "waiting"
    """A map step whose children run."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def is_terminal(self) -> bool:
        return self in STEP_ENDS

    @property
    def is_leased(self) -> bool:
        return self is StepStatus.RUNNING


class StepEvent(StrEnum):
    """An event that moves a step. The name is also the type of the event in the run's log (``step_<event>``)."""

    UNLOCK = "unlock"
    EXPAND = "expand"
    EXPANDED = "expanded"
    CLAIM = "claim"
    PARK = "park"
    UNPARK = "unpark"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    EXPIRE = "expire"
    QUARANTINE = "quarantine"
    RETRY = "retry"
    CANCEL = "cancel"
    SKIP = "skip"


STEP_ENDS = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED})

_S, _E = StepStatus, StepEvent

STEP_TRANSITIONS: Mapping[tuple[StepStatus, StepEvent], StepStatus] = {
    (_S.PENDING, _E.UNLOCK): _S.READY,
    (_S.PENDING, _E.EXPAND): _S.EXPANDING,
    (_S.EXPANDING, _E.EXPANDED): _S.WAITING,
    (_S.EXPANDING, _E.UNLOCK): _S.READY,
    (_S.EXPANDING, _E.SKIP): _S.SKIPPED,
    (_S.EXPANDING, _E.COMPLETE): _S.COMPLETED,
    (_S.EXPANDING, _E.FAIL): _S.FAILED,
    (_S.WAITING, _E.COMPLETE): _S.COMPLETED,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.READY, _E.CLAIM): _S.RUNNING,
    (_S.RUNNING, _E.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.PARK): _S.BLOCKED,
    (_S.RUNNING, _E.RELEASE): _S.READY,
    (_S.RUNNING, _E.EXPIRE): _S.READY,
    (_S.RUNNING, _E.QUARANTINE): _S.FAILED,
    (_S.BLOCKED, _E.UNPARK): _S.READY,
    (_S.COMPLETED, _E.RETRY): _S.PENDING,
    (_S.FAILED, _E.RETRY): _S.PENDING,
    (_S.CANCELLED, _E.RETRY): _S.PENDING,
    (_S.SKIPPED, _E.RETRY): _S.PENDING,
    **{(status, _E.CANCEL): _S.CANCELLED for status in StepStatus if status not in STEP_ENDS},
    (_S.PENDING, _E.SKIP): _S.SKIPPED,
    (_S.READY, _E.SKIP): _S.SKIPPED,
}


class TaskStatus(StrEnum):
    """The status of a task. A paused task starts nothing new and keeps what is done."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)


class TaskEvent(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


_T, _V = TaskStatus, TaskEvent

TASK_TRANSITIONS: Mapping[tuple[TaskStatus, TaskEvent], TaskStatus] = {
    (_T.RUNNING, _V.PAUSE): _T.PAUSED,
    (_T.PAUSED, _V.PAUSE): _T.PAUSED,
    (_T.PAUSED, _V.RESUME): _T.RUNNING,
    (_T.RUNNING, _V.RESUME): _T.RUNNING,
    (_T.RUNNING, _V.COMPLETE): _T.COMPLETED,
    (_T.RUNNING, _V.FAIL): _T.FAILED,
    (_T.RUNNING, _V.CANCEL): _T.CANCELLED,
    (_T.PAUSED, _V.CANCEL): _T.CANCELLED,
    (_T.PAUSED, _V.COMPLETE): _T.COMPLETED,
    (_T.PAUSED, _V.FAIL): _T.FAILED,
    (_T.COMPLETED, _V.RETRY): _T.RUNNING,
    (_T.FAILED, _V.RETRY): _T.RUNNING,
    (_T.CANCELLED, _V.RETRY): _T.RUNNING,
}


def advance_step(status: StepStatus, event: StepEvent) -> StepStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return STEP_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("step", status, event) from None


def advance_task(status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return TASK_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("task", status, event) from None
