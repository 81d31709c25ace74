"""The plan: a DAG of steps as a person writes it, in YAML or JSON (DAG-02, DAG-08).

Owns the values. Reading one is :mod:`soong.shared.engine.tasks.plan.reader`, its checks are
:mod:`soong.shared.engine.tasks.plan.checks`; making rows of it is :mod:`soong.shared.engine.tasks.expansion`.
Whatever a plan says is checked before anything is written.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind
from soong.shared.engine.tasks.paths import Path
from soong.shared.engine.tasks.problems import Hint
from soong.shared.engine.tasks.spec import DeclaredPermissions, StepSpec

InputType = Literal["string", "integer", "number", "boolean", "array", "object"]

INPUT_TYPES: tuple[InputType, ...] = ("string", "integer", "number", "boolean", "array", "object")

DEFAULT_DEFINITION = "default_worker_agent"
ACP_PREFIX = "acp:"
"""Before the name of an agent of others (ACP-01), as definition and as the model of its runs."""
ORCHESTRATOR = "orchestrator"
"""The definition of agents that plan and delegate."""
MAX_MAP_ITEMS = 10_000
DEFAULT_RETRIES = 3
"""More attempts of a step whose ``on_failure`` is ``retry`` and that says no number (DAG-05)."""


class OnFailure(StrEnum):
    """What a plan may say of a step's failure. RETRY is a number of attempts first, and then what is done by default.

    The default: dependents are skipped; under an agent that plans the task they wait for what it decides.
    """

    SKIP_DEPENDENTS = "skip_dependents"
    FAIL_TASK = "fail_task"
    KEEP = "keep"
    RETRY = "retry"


class PlanInput(Value):
    """A value that is given when the plan is run. Required when it has no default."""

    name: str
    type: InputType = "string"
    description: str = ""
    is_required: bool = True
    default: Json = None


class PlanStep(Value):
    """A step as planned. Durations in seconds: this is the form that is stored and shown.

    ``instructions``, ``title`` of a map's child, ``inputs`` and ``permissions`` are templates
    (:mod:`soong.shared.engine.tasks.plan.template`). ``script`` names the scripted agent that runs without a model
    (:mod:`soong.shared.engine.tasks.scripted`). ``settings`` are those of its model's requests that it
    sets itself; ``allowed_tools`` None takes the definition's. ``permissions`` says what the step will ask people for.
    ``output`` is the schema of the result. ``over``, ``item_name``, ``item_key``, ``step``, ``max_items`` and
    ``on_item_failure`` belong to a map step; ``call`` and ``isolation`` to a python step.
    ``claim``: PULL leaves an agent step to a run that asks for it, whose agent, model and tools then do it.
    A failure policy of None is the default (:class:`OnFailure`).
    """

    id: str
    kind: StepKind = StepKind.AGENT
    title: str = ""
    instructions: str = ""
    depends_on: tuple[str, ...] = ()
    agent: str = DEFAULT_DEFINITION
    model: str = ""
    settings: JsonObject = msgspec.field(default_factory=dict)
    allowed_tools: tuple[str, ...] | None = None
    permissions: DeclaredPermissions = msgspec.field(default_factory=DeclaredPermissions)
    inputs: JsonObject = msgspec.field(default_factory=dict)
    output: JsonObject | None = None
    priority: int = 0
    retries: int = 0
    backoff_s: float = 1.0
    timeout_s: float | None = None
    pool: str = "default"
    needs: tuple[str, ...] = ()
    on_failure: FailurePolicy | None = None
    call: str = ""
    isolation: str | None = None
    script: str = ""
    over: Json = None
    item_name: str = "item"
    item_key: str = ""
    step: "PlanStep | None" = None
    max_items: int = 1000
    on_item_failure: FailurePolicy | None = None
    claim: ClaimMode = ClaimMode.ASSIGNED
    role: Role = Role.WORKER
    """What its agent is. The owner sets it; it is not read from a plan."""


class Plan(Value):
    """A checked plan. ``document`` is what was read, stored with the task."""

    title: str
    inputs: tuple[PlanInput, ...]
    steps: tuple[PlanStep, ...]
    document: JsonObject
    source: str = "plan"
    limits: Budget = NO_BUDGET
    """What all runs of its task together may use, and how long the task may take (DIS-07)."""
    modules: tuple[str, ...] = ()
    """Modules next to the plan's file that register scripted agents; workers started for it import them."""

    def step(self, step_id: str) -> PlanStep:
        """Return a step by id. Raises: KeyError."""
        return {step.id: step for step in self.steps}[step_id]


Report: TypeAlias = Callable[[Path, str, Hint], None]
"""Takes the place, the problem and the hint of one problem."""


class Registered(Value):
    """The functions that modules have registered; of scripted agents with the tools that their source calls by name."""

    functions: frozenset[str]
    scripts: Mapping[str, Sequence[str]]


ModuleLoader: TypeAlias = Callable[[str], Registered | None]
"""Makes a module of a plan known; returns what is registered with it, if that is known. Raises: InvalidConfigError."""


class PlanNames(Value):
    """What a plan may name. None leaves that unchecked: only the process that runs the plan knows it.

    ``tools`` are canonical names; ``allowed_tools`` may also be globs over them. ``load_module`` is set only where a
    plan may name modules: a local file that its user runs.
    """

    tools: frozenset[str] | None = None
    definitions: frozenset[str] | None = None
    functions: frozenset[str] | None = None
    scripts: frozenset[str] | None = None
    calls: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    """The tools that the source of scripted agents calls by name, as far as it is known."""
    load_module: ModuleLoader | None = None
    module_hint: str = "name a module next to the plan's file that can be imported"
    may_name_orchestrator: bool = False
    """Only of a fork, which has the definition of its parent and the rights of a child."""
    definition_models: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The models of those agent definitions that name one; a step's own goes first, the task's comes last."""

    choosable_models: frozenset[str] = frozenset()
    """Names and globs of the models that agents may choose, in addition to those of their own task."""

    def with_model(self, step: PlanStep) -> PlanStep:
        """Return a step with the model of its agent definition, where it names none itself."""
        if step.step is not None:
            return replace(step, step=self.with_model(step.step))
        named = self.definition_models.get(step.agent, "")
        is_open = step.kind is StepKind.AGENT and step.claim is ClaimMode.ASSIGNED and not step.model
        return replace(step, model=named) if named and is_open else step


def has_type(value: Json, type_name: InputType) -> bool:
    """Say whether a value is of an input type; a boolean is not a number."""
    match type_name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list | tuple)
        case "object":
            return isinstance(value, Mapping)


def spec_of(step: PlanStep) -> StepSpec:
    """Return what the step's row keeps of it; an item of a map takes the map's policy for failures."""
    child = step.step
    return StepSpec(
        id=step.id,
        kind=step.kind,
        title=step.title,
        instructions=step.instructions,
        inputs=step.inputs,
        output=step.output,
        call=step.call,
        isolation=step.isolation,
        script=step.script,
        settings=step.settings,
        allowed_tools=step.allowed_tools,
        permissions=step.permissions,
        timeout_s=step.timeout_s,
        retries=step.retries,
        priority=step.priority,
        backoff_s=step.backoff_s,
        on_failure=step.on_failure,
        claim=step.claim,
        over=step.over,
        item_name=step.item_name,
        item_key=step.item_key,
        max_items=step.max_items,
        on_item_failure=step.on_item_failure,
        step=None if child is None else spec_of(replace(child, on_failure=step.on_item_failure)),
    )
