"""The plan: a DAG of steps as a person writes it, in YAML or JSON (DAG-02, DAG-08).

Owns the values. Reading one is :mod:`soong.shared.engine.tasks.plan.reader`, its checks are
:mod:`soong.shared.engine.tasks.plan.checks`; making rows of it is :mod:`soong.shared.engine.tasks.expansion`.
Everything in a plan is checked before anything is written.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget
from soong.shared.engine.tasks.problems import Hint, Path
from soong.shared.engine.tasks.spec import StepSpec

InputType = Literal["string", "integer", "number", "boolean", "array", "object"]

INPUT_TYPES: tuple[InputType, ...] = ("string", "integer", "number", "boolean", "array", "object")

ACP_PREFIX = "acp:"
"""Before the name of an agent of others (ACP-01), as definition and as the model of its runs."""
ORCHESTRATOR = "orchestrator"
"""The definition of agents that plan and delegate."""
MAX_MAP_ITEMS = 10_000
DEFAULT_RETRIES = 3
"""More attempts of a step whose ``on_failure`` is ``retry`` without a number (DAG-05)."""


class OnFailure(StrEnum):
    """A plan's policy for a step's failure. RETRY is a number of attempts first, and then the default.

    The default: dependents are skipped; under an agent that plans the task they wait for its decision.
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


class Plan(Value):
    """A checked plan. ``document`` is what was read, stored with the task."""

    title: str
    inputs: tuple[PlanInput, ...]
    steps: tuple[StepSpec, ...]
    document: JsonObject
    source: str = "plan"
    limits: Budget = NO_BUDGET
    """Limits on the usage of all runs of its task together, and on the task's time (DIS-07)."""
    modules: tuple[str, ...] = ()
    """Modules next to the plan's file that register scripted agents; workers started for it import them."""
    tags: tuple[str, ...] = ()

    def step(self, step_id: str) -> StepSpec:
        """Return a step by id. Raises: KeyError."""
        return {step.id: step for step in self.steps}[step_id]


Report: TypeAlias = Callable[[Path, str, Hint], None]
"""Takes the place, the problem and the hint of one problem."""


class Registered(Value):
    """The functions that modules have registered; scripted agents with the tools that their source calls by name."""

    functions: frozenset[str]
    scripts: Mapping[str, Sequence[str]]


ModuleLoader: TypeAlias = Callable[[str], Registered | None]
"""Makes a module of a plan known; returns what is registered with it, if that is known. Raises: InvalidConfigError."""


class PlanNames(Value):
    """The names that a plan may use. None leaves that unchecked: only the process that runs the plan has them.

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

    def with_model(self, step: StepSpec) -> StepSpec:
        """Return a step with the model of its agent definition, where it names none itself."""
        if step.step is not None:
            return replace(step, step=self.with_model(step.step))
        named = self.definition_models.get(step.agent, "")
        return replace(step, model=named) if named and step.is_own_agent and not step.model else step


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
