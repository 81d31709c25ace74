"""Changes to a running task (``agent.task_update``, the SDK), checked as a plan is (DAG-01, DAG-02).

One document names it all: ``add_steps`` as a plan writes them, ``add_dependencies`` of steps that are still pending,
``retry_steps`` with what is to be different, ``priorities``, ``skip_steps`` and ``cancel_steps``. Every problem is
named at once, and nothing of a document with one is carried out.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace
from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.checks import Standing, StepDocument, check_plan
from soong.shared.engine.tasks.plan.fields import PlanModel, Priority, Seconds, StepId, Text, Texts, Title
from soong.shared.engine.tasks.plan.plan import Plan, PlanInput, PlanNames, Report
from soong.shared.engine.tasks.plan.reader import read_step
from soong.shared.engine.tasks.plan.template import references
from soong.shared.engine.tasks.plan.validation import DocumentReader, Expected
from soong.shared.engine.tasks.problems import Hint, Path, Problems, Unknown
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION, DeclaredPermissions, StepSpec
from soong.shared.engine.tasks.step import Step, Task

SOURCE: Final = "update"


class EdgeDocument(PlanModel):
    """More dependencies of one step."""

    step: Title
    depends_on: Texts = ()


class AttemptDocument(PlanModel):
    """A failed step to be tried again; a text is the id of one that is tried as it was."""

    step: Title
    agent: Text = ""
    model: Text = ""
    instructions: Text = ""
    allowed_tools: Texts | None = None
    pool: Text = ""
    needs: Texts | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        return {"step": value} if isinstance(value, str) else value


class UpdateDocument(PlanModel):
    """The changes to a running task."""

    add_steps: tuple[StepDocument, ...] = Field(
        default=(), description="More steps, written as in a plan; they may depend on any of the task."
    )
    add_dependencies: tuple[EdgeDocument, ...] = Field(
        default=(), description="More dependencies of steps that are still pending."
    )
    retry_steps: tuple[AttemptDocument, ...] = Field(
        default=(),
        description="Failed steps to be tried again, each with what is to be different: agent, model, tools.",
    )
    priorities: dict[str, Priority] = Field(default={}, description="New priority by step id; higher first.")
    skip_steps: Texts = Field(default=(), description="Steps that are not needed; what depends on them is skipped too.")
    cancel_steps: Texts = Field(default=(), description="Steps to be stopped, also while they run.")
    reason: Text = Field(default="", description="Why, for people and for the log.")


class UpdateHead(UpdateDocument):
    """An update whose parts are validated one by one, as those of a plan are."""

    add_steps: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    add_dependencies: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    retry_steps: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    priorities: Annotated[dict[str, Any], Field(strict=False)] = Field(default={})


_UPDATE: Final = DocumentReader.of(UpdateHead)
_EDGE: Final = DocumentReader.of(EdgeDocument)
_ATTEMPT: Final = DocumentReader.of(AttemptDocument)
_PRIORITY: Final[DocumentReader[int]] = DocumentReader(TypeAdapter(Priority, config=ConfigDict(defer_build=True)), {})

MAX_PULL_WORKERS: Final = 1000
"""Most pull workers of one dispatch; concurrency limits bound the running steps of a session."""


class Attempt(Value):
    """A failed step that is to be tried again; ``changes`` are the fields of its spec that are others now."""

    step_id: str
    changes: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Update(Value):
    """A checked document; steps are named by their ids."""

    steps: tuple[StepSpec, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    """New dependencies of existing steps: (step, parent)."""
    attempts: tuple[Attempt, ...] = ()
    priorities: Mapping[str, int] = msgspec.field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    reason: str = ""


def read_update(document: JsonObject, task: Task, steps: Sequence[Step], known: PlanNames) -> Update:
    """Read the changes to a task with the given steps.

    Raises:
        InvalidPlanError: with every problem; or nothing is asked at all.
    """
    problems = Problems(SOURCE)
    report: Report = problems.report
    standing = standing_of(steps)
    update = _read(document, {step.step_id for step in steps}, report)
    check_plan(_plan(task, update.steps), known, _below("add_steps", report), standing)
    _check_edges(update, standing, report)
    by_id = {step.step_id: step for step in steps}
    for index, attempt in enumerate(update.attempts):
        _check_attempt(attempt, index, task, by_id, known, report)
    if update == Update(reason=update.reason) and not problems.count:
        report((), "nothing is asked for", "name add_steps, retry_steps, skip_steps, cancel_steps or priorities")
    problems.refuse()
    attempts = tuple(_with_model(attempt, known) for attempt in update.attempts)
    return replace(update, steps=tuple(map(known.with_model, update.steps)), attempts=attempts)


def _with_model(attempt: Attempt, known: PlanNames) -> Attempt:
    """Return an attempt by another agent with the model of that agent's definition, where it names none itself."""
    named = known.definition_models.get(attempt.changes.get("agent", ""))
    return replace(attempt, changes={"model": named, **attempt.changes}) if named else attempt


def standing_of(steps: Sequence[Step]) -> Standing:
    """Return what the steps of a task depend on, by id; map children and pull workers are nobody's to depend on."""
    ids = {step.key: step.step_id for step in steps}
    return {
        step.step_id: [ids[key] for key in step.depends_on]
        for step in steps
        if not (step.map_key or step.is_pull_worker)
    }


def planned(step: Step) -> StepSpec:
    """Return an existing step as planned: the start of another attempt."""
    spec = step.spec
    return replace(spec, model=step.model, instructions=(spec.bound or spec).instructions)


def planned_task(task: Task, steps: Sequence[Step]) -> Plan:
    """Return a task as a plan to be drawn: its steps with all that was added to it, map steps without their items.

    ``steps`` may be some of them: edges to the others are not drawn.
    """
    ids = {step.key: step.step_id for step in steps}
    own = [step for step in steps if not (step.map_key or step.is_pull_worker)]
    drawn = [
        replace(step.spec, title=step.title, depends_on=tuple(ids[key] for key in step.depends_on if key in ids))
        for step in own
    ]
    return Plan(task.title, (), tuple(drawn), task.plan)


def _read(document: JsonObject, ids: set[str], report: Report) -> Update:
    head = _UPDATE.read(document, (), report) or UpdateHead()
    attempts = [_read_attempt(value, index, ids, report) for index, value in enumerate(head.retry_steps)]
    update = Update(
        steps=tuple(read_step(value, ("add_steps", index), report) for index, value in enumerate(head.add_steps)),
        edges=_read_edges(head.add_dependencies, ids, report),
        attempts=tuple(attempt for attempt in attempts if attempt is not None),
        priorities=_read_priorities(head.priorities, ids, report),
        skipped=_known("skip_steps", head.skip_steps, ids, report),
        cancelled=_known("cancel_steps", head.cancel_steps, ids, report),
        reason=head.reason,
    )
    for name in sorted(set(update.skipped) & set(update.cancelled)):
        report(("cancel_steps",), f"{name!r} is in skip_steps too", "name it once")
    return update


def _read_edges(values: Sequence[Json], ids: set[str], report: Report) -> tuple[tuple[str, str], ...]:
    edges: list[tuple[str, str]] = []
    for index, value in enumerate(values):
        path: Path = ("add_dependencies", index)
        edge = _EDGE.read(value, path, report)
        if edge is not None:
            _check_known(edge.step, ids, (*path, "step"), report)
            edges += [(edge.step, parent) for parent in edge.depends_on]
    return tuple(edges)


def _read_attempt(value: Json, index: int, ids: set[str], report: Report) -> Attempt | None:
    path: Path = ("retry_steps", index)
    found = _ATTEMPT.read(value, path, report)
    if found is None or not _check_known(found.step, ids, (*path, "step"), report):
        return None
    changes = found.model_dump(exclude={"step"})
    return Attempt(found.step, {name: value for name, value in changes.items() if value not in ("", None)})


def _read_priorities(given: JsonObject, ids: set[str], report: Report) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, value in given.items():
        path: Path = ("priorities", name)
        priority = _PRIORITY.read(value, path, report)
        if _check_known(name, ids, path, report) and priority is not None:
            found[name] = priority
    return found


def _known(name: str, named: Sequence[str], ids: set[str], report: Report) -> tuple[str, ...]:
    return tuple(one for index, one in enumerate(dict.fromkeys(named)) if _check_known(one, ids, (name, index), report))


def _check_known(step_id: str, ids: set[str], path: Path, report: Report) -> bool:
    if step_id not in ids:
        report(path, f"the task has no step {step_id!r}", Unknown(step_id, ids))
    return step_id in ids


def _check_edges(update: Update, standing: Standing, report: Report) -> None:
    known = frozenset(standing) | {step.id for step in update.steps}
    for child, parent in update.edges:
        if parent not in known:
            problem = f"{child!r} cannot depend on {parent!r}: there is no such step"
            report(("add_dependencies",), problem, Unknown(parent, known, but=child))


def _check_attempt(
    attempt: Attempt, index: int, task: Task, steps: Mapping[str, Step], known: PlanNames, report: Report
) -> None:
    """Check a changed step as if the plan had it that way."""
    step = steps[attempt.step_id]
    path: Path = ("retry_steps", index)
    if step.kind.traits.has_items:
        report(path, f"{attempt.step_id!r} is a map step and is not run itself", "name its failed items")
        return
    if not attempt.changes:
        return
    if not step.kind.traits.is_agent:
        report(path, f"{attempt.step_id!r} is a {step.kind} step", "name only `step`: there is no agent to change")
        return
    # The children of a map were bound when they were made: their text is taken as it is.
    instructions = "" if step.map_key else attempt.changes.get("instructions", "")
    changed = replace(
        planned(step),
        title="",
        permissions=DeclaredPermissions(),
        inputs={},
        output=None,
        script="builtin.echo",
        instructions=instructions,
        agent=attempt.changes.get("agent", step.spec.agent),
        allowed_tools=attempt.changes.get("allowed_tools"),
        depends_on=tuple(key.partition("/")[2] for key in step.depends_on),
    )
    others: Standing = dict.fromkeys((*changed.depends_on, *_mentioned(instructions, steps) - {step.step_id}), ())
    at_step: Report = lambda _place, problem, hint: report(path, problem, hint)  # noqa: E731  # typed by its name
    check_plan(_plan(task, (changed,)), known, at_step, others)


def _mentioned(text: str, steps: Mapping[str, Step]) -> set[str]:
    """Return the steps that the references of a text name; none for a malformed text."""
    try:
        found = [reference for _, reference in references(text)]
    except TemplateError:
        return set()
    named = [one.root_in(steps) for one in found] + [str(one.parts[1]) for one in found if len(one.parts) > 1]
    return {name for name in named if name is not None and name in steps}


def _plan(task: Task, steps: tuple[StepSpec, ...]) -> Plan:
    # References may name the inputs that the task was given.
    return Plan(task.title, tuple(PlanInput(name) for name in task.inputs), steps, {})


def _below(name: str, report: Report) -> Report:
    """Report the places of a plan's steps as those of the document's field."""

    def moved(path: Path, problem: str, hint: Hint) -> None:
        report((name, *path[1:]) if path[:1] == ("steps",) else path, problem, hint)

    return moved


class DispatchDocument(PlanModel):
    """The number of pull workers for a task, and their author's settings."""

    count: Annotated[int, Field(ge=1, le=MAX_PULL_WORKERS), Expected(f"an integer from 1 to {MAX_PULL_WORKERS}")] = 1
    max_steps: Annotated[int, Field(ge=1, le=1_000_000), Expected("an integer from 1 to 1000000")] | None = None
    instructions: Text = ""
    agent: Text = DEFAULT_DEFINITION
    model: Text = ""
    allowed_tools: Texts | None = None
    script: Text = ""
    pool: StepId = "default"
    needs: Texts = ()
    timeout_s: Seconds | None = None
    reason: Text = ""
