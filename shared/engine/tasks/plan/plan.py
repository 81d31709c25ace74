"""The plan: a DAG of steps as a person writes it, in YAML or JSON (DAG-02, DAG-08), and the binding of its values.

Owns the values. Reading one is :mod:`soong.shared.engine.tasks.plan.reader`, its checks are
:mod:`soong.shared.engine.tasks.plan.checks`; making rows of it is :mod:`soong.shared.engine.tasks.expansion`.
Everything in a plan is checked before anything is written. Values are bound to its inputs when it is submitted, a
step's templates to what is known when it runs.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import EXPECTED, MOST_FAULTS, Json, JsonObject, dotted, faults, parse_strict
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.template import Scope, as_text, json_head, render, render_text
from soong.shared.engine.tasks.problems import Hint, Path, Problems, Unknown
from soong.shared.engine.tasks.spec import BoundStep, StepSpec
from soong.shared.engine.tasks.step import StepResult

InputType = Literal["string", "integer", "number", "boolean", "array", "object"]

INPUT_TYPES: tuple[InputType, ...] = ("string", "integer", "number", "boolean", "array", "object")

ACP_PREFIX = "acp:"
"""Before the name of an agent of others (ACP-01), as definition and as the model of its runs."""
OWN_PREFIX = "python:"
"""Before the name of a registered agent of another library (BYO-01), as definition and as the model of its runs."""
FOREIGN_PREFIXES = (ACP_PREFIX, OWN_PREFIX)
"""Agents whose own loop runs: what they name as their model is not a model of a provider."""
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
    """The content of modules: functions with the version of their file, and scripted agents with the tools
    that their source calls by name. ``document`` is that of the plan in Python that was asked for, if one was.
    """

    functions: Mapping[str, str]
    scripts: Mapping[str, Sequence[str]]
    agents: Sequence[str] = ()
    """Agents of other libraries, by name without prefix."""
    document: JsonObject | None = None


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
    agents: frozenset[str] | None = None
    """Registered agents of other libraries, by name without prefix."""
    calls: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    """The tools that the source of scripted agents calls by name, as far as it is known."""
    load_module: ModuleLoader | None = None
    imports_apps: bool = False
    """The modules of the Celery apps of its steps count as its own: only of a local file that its user runs."""
    lacks_app: bool = False
    """The workers have no Celery app of their own: each celery step names one."""
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
        own = step.agent if step.agent.startswith(OWN_PREFIX) else ""
        named = self.definition_models.get(step.agent, own)
        return replace(step, model=named) if named and step.is_own_agent and not step.model else step


def with_versions(plan: Plan, versions: Mapping[str, str]) -> Plan:
    """Return a plan whose functions have to be of these versions of their files, by name."""

    def bound(step: StepSpec) -> StepSpec:
        inner = None if step.step is None else bound(step.step)
        return replace(step, step=inner, code=versions.get(step.call, ""))

    return replace(plan, steps=tuple(map(bound, plan.steps))) if versions else plan


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


def bind_inputs(plan: Plan, given: Mapping[str, Json]) -> dict[str, Json]:
    """Return the value of every input of the plan. A text given for another type is read as JSON (a command line's).
    Raises: InvalidPlanError, an unknown input, a missing one, or one of the wrong type.
    """
    known = {one.name: one for one in plan.inputs}
    problems = Problems()
    for name in given:
        if name not in known:
            problems.add(f"input {name!r}", "the plan has no such input", Unknown(name, known))
    for path, found in islice(faults(given), MOST_FAULTS):
        problems.add(f"input {dotted(path)}", found, f"give {EXPECTED}")
    bound: dict[str, Json] = {}
    for one in plan.inputs:
        try:
            bound[one.name] = _bind(one, given)
        except ValueError as error:
            problems.add(f"input {one.name!r}", str(error), f"pass `--input {one.name}=<{one.type}>`")
    problems.refuse()
    return bound


def _bind(one: PlanInput, given: Mapping[str, Json]) -> Json:
    if one.name not in given:
        if one.is_required:
            raise ValueError("it is required and not given" + (f" ({one.description})" if one.description else ""))
        return one.default
    value = given[one.name]
    if not isinstance(value, str) or one.type == "string":
        return _typed(value, one.type)
    return _typed(parse_strict(value), one.type)


def _typed(value: Json, type_name: InputType) -> Json:
    if not has_type(value, type_name):
        raise ValueError(f"{json_head(value, 60)} is not of type {type_name}")
    return value


def scope_of(task_inputs: JsonObject, dependencies: Mapping[str, StepResult]) -> Scope:
    """Return what the references of a step may name: inputs and its dependencies' results."""
    results: dict[str, Json] = {
        step_id: {
            "output": one.output,
            "status": one.status.value,
            "outcome": one.outcome.value,
            "error": None if one.error is None else one.error.as_json(),
            "denials": list(one.denials),
            "unknown_effects": list(one.unknown_effects),
            "partial": one.partial,
        }
        for step_id, one in dependencies.items()
    }
    return {"inputs": task_inputs, "steps": results, **results}


def with_item(scope: Scope, name: str, item: Json) -> Scope:
    """Return what the references of a map's child may name: those of the map step, and the item."""
    return ChainMap({name: item}, cast("dict[str, Json]", scope))


def bind_step(spec: StepSpec, task_inputs: JsonObject, dependencies: Mapping[str, StepResult]) -> BoundStep:
    """Return the instructions and inputs of the claimed step's run.

    A map's child was bound when it was made, and stays so: a value from its item is never expanded again.
    Raises: TemplateError, a dependency's result has not what the plan asks of it; BudgetExceededError, the result of
    its templates is too large for a step.
    """
    if spec.bound is not None:
        return spec.bound
    return bind(spec, scope_of(task_inputs, dependencies), ExpansionBudget("the inputs of the step"))


def bind(spec: StepSpec, scope: Scope, budget: ExpansionBudget) -> BoundStep:
    """Look up every reference of a step's instructions and inputs, and count what a run or a row is given.
    Raises: TemplateError, BudgetExceededError.
    """
    inputs = render(spec.inputs, scope, budget)
    if not isinstance(inputs, Mapping):
        raise TemplateError("inputs", "the inputs of a step are not a mapping")
    budget.spend(budget.size_of(inputs))
    instructions = render_text(spec.instructions, scope, budget)
    budget.spend_text(budget.size_of(instructions))
    args = render(spec.args, scope, budget)
    budget.spend(budget.size_of(args))
    return BoundStep(as_text(instructions), inputs, tuple(args) if isinstance(args, list | tuple) else ())
