"""Makes rows of plans: a task with its steps and first runs, a map step's children, the next attempt of a step.

Pure but for ids and tokens. Every lineage of a DAG comes from here, in the session's owner or the client that makes
the task, and never from a worker.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from soong.shared.core.errors import TemplateError
from soong.shared.core.gc_pause import gc_pause
from soong.shared.core.identity import OWN, Origin, Role, RunIdentity
from soong.shared.core.ids import new_id, step_key
from soong.shared.core.inert import is_seen
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.record import NewRun, Run
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.asks import FOLLOWS, ask_document
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind, TaskKind
from soong.shared.engine.tasks.plan.budget import MAX_EXPANSION_BYTES, ExpansionBudget
from soong.shared.engine.tasks.plan.inputs import bind, scope_of, with_item
from soong.shared.engine.tasks.plan.permissions import rendered
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR, Plan, PlanStep, spec_of
from soong.shared.engine.tasks.plan.template import Scope, head_of, json_head, render, render_head
from soong.shared.engine.tasks.problems import Problems
from soong.shared.engine.tasks.spec import DeclaredPermissions, StepSpec
from soong.shared.engine.tasks.step import NewStep, NewTask, Step, StepResult, Task
from soong.shared.engine.wire.capabilities import (
    declared,
    functions_needed,
    project_needed,
    projects_among,
    tools_needed,
)
from soong.shared.engine.wire.jobs import written_in
from soong.shared.tools.surface import Surface

SurfaceOf: TypeAlias = Callable[[PlanStep], JsonObject]
"""Computes the stored surface of a step's run, under the session's policy (:mod:`soong.shared.tools.surface`).

Of a step it looks at its kind, its agent definition and its allowed tools; nobody changes what it returns."""

MAX_KEY_CHARS = 120
_READ_KEY_CHARS = 1_000
"""Of what a key is made: white space at its start does not count."""
MAX_TITLE_CHARS = 200


def _tokens() -> Iterator[str]:
    """Yield tokens of runs; the system is asked for many at once."""
    while True:
        many = secrets.token_hex(16 * 32)
        yield from (many[at : at + 32] for at in range(0, len(many), 32))


@dataclass(frozen=True, slots=True)
class _Lineage:
    """What all runs of one task share."""

    session_id: str
    task_id: str
    root_run_id: str
    root_agent_id: str
    project: tuple[str, ...] = ()
    """What a worker must have to work in the session's project."""
    origin: Origin = OWN
    tokens: Iterator[str] = field(default_factory=_tokens)

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


def new_task(
    plan: Plan,
    inputs: JsonObject,
    session: Session,
    *,
    surface_of: SurfaceOf,
    default_model: str,
    now_us: int,
    task_id: str = "",
    agent: RunIdentity | None = None,
) -> NewTask:
    """Return a task of the plan with all that is written with it. ``inputs`` are bound (:func:`bind_inputs`).

    ``agent`` is the run that plans it, if one does: the parent of its root run. ``task_id`` is made when left out.

    Raises:
        InvalidPlanError: a step would run on the script model and has no script.
    """
    check_models(plan.steps, default_model, plan.source)
    task_id = task_id or new_id("task")
    root = RunIdentity(
        session.id,
        new_id("run"),
        new_id("agent"),
        Role.ORCHESTRATOR,
        ORCHESTRATOR,
        parent_run_id=agent.run_id if agent else "",
        parent_agent_id=agent.agent_id if agent else "",
        task_id=task_id,
        origin=agent.origin if agent else Origin(session.principal),
    )
    project = project_needed(session.project_id, session.project)
    lineage = _Lineage(session.id, task_id, root.run_id, root.agent_id, project, root.origin)
    titles = _Titles(scope_of(inputs, {}), ExpansionBudget("the titles of the steps"))
    surfaces = _Surfaces(surface_of)
    with gc_pause(len(plan.steps)):
        steps = tuple(_new_step(step, lineage, titles, surfaces, default_model) for step in plan.steps)
    return NewTask(
        id=task_id,
        session_id=session.id,
        title=plan.title,
        plan=plan.document,
        inputs=inputs,
        created_us=now_us,
        root_run=NewRun(root, {}, _token()),
        steps=steps,
    )


def new_ask(
    spec: StepSpec,
    session: Session,
    *,
    title: str,
    role: Role,
    definition: str,
    model: str,
    surface: JsonObject,
    now_us: int,
    task_id: str = "",
    follows: str = "",
) -> NewTask:
    """Return a task whose root run is an agent with a goal: ``spec`` says what it is to do, ``role`` what it may be.

    ``follows`` is the run whose conversation it continues: of this session, or of one that this one is a fork of.

    Raises:
        ValueError: the role is that of a child, which never starts agents.
    """
    if role.is_child:
        raise ValueError(f"a {role.value} agent answers no ask")
    task_id = task_id or new_id("task")
    origin = Origin(session.principal)
    identity = RunIdentity(
        session.id, new_id("run"), new_id("agent"), role, definition, task_id=task_id, model=model, origin=origin
    )
    return NewTask(
        id=task_id,
        session_id=session.id,
        title=title[:MAX_TITLE_CHARS],
        plan=ask_document(spec),
        inputs={FOLLOWS: follows} if follows else {},
        created_us=now_us,
        root_run=NewRun(identity, surface, _token()),
        steps=(),
        kind=TaskKind.ASK,
    )


def models_of(plan: Plan, default_model: str) -> frozenset[str]:
    """Return the models that the agents of a plan run on, those of its map steps' items among them."""
    return frozenset(filter(None, (_model(step.step or step, default_model) for step in plan.steps)))


def check_models(steps: Sequence[PlanStep], default_model: str, source: str) -> None:
    """A script model without a script can do nothing: say so before anything is written. Raises: InvalidPlanError."""
    problems = Problems()
    for index, step in enumerate(steps):
        work = step.step or step
        model = work.model or default_model
        is_own_agent = work.kind is StepKind.AGENT and work.claim is ClaimMode.ASSIGNED
        if is_own_agent and model == "script" and not work.script:
            place = f"{source}{'' if source.endswith('add_steps') else ' steps'}[{index}]{'.step' if step.step else ''}"
            problem = f"step {step.id!r} has no script and would run on the model 'script'"
            problems.add(place, problem, "choose a model (`--model provider:name`) or add a `script:`")
    problems.refuse()


def grown(
    steps: Sequence[PlanStep],
    task: Task,
    root: RunIdentity,
    *,
    surface_of: SurfaceOf,
    default_model: str,
    project: tuple[str, ...] = (),
    origin: Origin = OWN,
) -> tuple[NewStep, ...]:
    """Return checked steps as they are added to a running task, under its ``root`` run.

    ``project`` is what a worker must have to work in the session's project, ``origin`` who adds them.

    Raises:
        InvalidPlanError: a step would run on the script model and has no script.
    """
    check_models(steps, default_model, "update add_steps")
    lineage = _Lineage(task.session_id, task.id, root.run_id, root.agent_id, project, origin)
    titles = _Titles(scope_of(task.inputs, {}), ExpansionBudget("the titles of the steps"))
    surfaces = _Surfaces(surface_of)
    return tuple(_new_step(step, lineage, titles, surfaces, default_model) for step in steps)


@dataclass(frozen=True, slots=True)
class _Titles:
    """Looks up the references of titles. One that cannot be looked up (yet) stays as it was written."""

    scope: Scope
    budget: ExpansionBudget

    def of(self, title: str) -> str:
        try:
            return render_head(title, self.scope, self.budget, MAX_TITLE_CHARS)
        except TemplateError:
            return title[:MAX_TITLE_CHARS]


@dataclass(frozen=True, slots=True)
class _Surfaces:
    """The surfaces of one plan's steps, with what their tools need. Steps that ask for the same share one object."""

    compute: SurfaceOf
    _known: dict[tuple[object, ...], tuple[JsonObject, Sequence[str]]] = field(default_factory=dict)

    def of(self, step: PlanStep) -> tuple[JsonObject, Sequence[str]]:
        """Return a step's surface, with the capabilities of a worker that has its tools.

        One that is pulled has none: the run that claims it uses its own.
        """
        if step.claim is ClaimMode.PULL:
            return {}, ()
        asked = (step.kind, step.role, step.agent, step.allowed_tools, *sorted(step.settings.items()))
        if asked not in self._known:
            surface = self.compute(step)
            self._known[asked] = surface, tools_needed(_tools(surface))
        return self._known[asked]


def _new_step(step: PlanStep, lineage: _Lineage, titles: _Titles, surfaces: _Surfaces, default_model: str) -> NewStep:
    work = step.step or step
    surface, needed = surfaces.of(work)
    model = _model(work, default_model)
    # Of a map step it is the items' surface: its expansion needs neither registry nor policy and changes with neither.
    is_map = step.kind is StepKind.MAP
    spec = replace(spec_of(step), child_surface=surface) if is_map else spec_of(step)
    key, title, definition = step_key(lineage.task_id, step.id), titles.of(step.title), _definition(work)
    return NewStep(
        key=key,
        task_id=lineage.task_id,
        session_id=lineage.session_id,
        step_id=step.id,
        title=title,
        kind=step.kind,
        spec=spec,
        depends_on=tuple(step_key(lineage.task_id, parent) for parent in step.depends_on),
        priority=step.priority,
        pool=work.pool,
        needs=_needs(work, needed, lineage.project, model),
        definition=definition,
        model=model,
        max_attempts=1 + step.retries,
        backoff_s=step.backoff_s,
        on_failure=step.on_failure or FailurePolicy.SKIP_DEPENDENTS,
        claim_mode=step.claim,
        run=None if is_map else lineage.run(key, title, definition, model, surface, work.role),
    )


def _needs(step: PlanStep, needed: Sequence[str], project: Sequence[str], model: str) -> tuple[str, ...]:
    """Return what a worker must announce: what the plan asks for, and what the step is made of.

    It reads what this program writes, and has the function that is called; or what the tools of the step's surface
    ``needed``, the project that they work in, and the scripted agent where no model is asked.
    """
    if not step.kind.traits.is_agent:
        return (*declared(step.needs), written_in(), *functions_needed([step.call]))
    script = functions_needed([step.script] if model == "script" else ())
    return (*declared(step.needs), written_in(), *script, *needed, *(project if needed else ()))


def _tools(surface: JsonObject) -> Sequence[str]:
    return Surface.from_json(surface).tools if "decisions" in surface else ()


def map_items(step: Step, scope: Scope, budget: ExpansionBudget) -> Sequence[Json]:
    """Return the items that a map step is over; ``scope`` is what its references may name.

    Raises:
        TemplateError: what it is over names nothing, is not a list, or has more items than ``max_items``.
    """
    over = step.spec.over
    items = render(over, scope, budget)
    name = over[2:-1] if isinstance(over, str) else "over"
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise TemplateError(name, "the map step is over something that is not a list")
    limit = step.spec.max_items
    if len(items) > limit:
        raise TemplateError(name, f"the map step is over {len(items)} items, and max_items is {limit}")
    return items


def expand_map(step: Step, task: Task, dependencies: Mapping[str, StepResult], root: RunIdentity) -> list[NewStep]:
    """Return the children of an expanding map step, in item order, each with its first run under the ``root`` run.

    The children's templates are looked up here, where the map step's dependencies are known.

    Raises:
        TemplateError: as :func:`map_items`, or a child's template names nothing, or two items have the same key.
        BudgetExceededError: the children would be too large to be stored.
    """
    lineage = _Lineage(step.session_id, step.task_id, root.run_id, root.agent_id, origin=root.origin)
    scope, budget = (
        scope_of(task.inputs, dependencies),
        ExpansionBudget("the children of the map step", MAX_EXPANSION_BYTES),
    )
    child = step.spec.step
    assert child is not None, "a map step's spec has the step of its items"
    template = replace(child, title="", instructions="", inputs={}, permissions=DeclaredPermissions())
    size = budget.size_of(template.to_json())
    seen: dict[str, int] = {}
    made = []
    for index, item in enumerate(map_items(step, scope, budget)):
        known = with_item(scope, step.spec.item_name, item)
        key = _key(step.spec.item_key, item, index, known, budget)
        if seen.setdefault(key, index) != index:
            raise TemplateError(f"{step.step_id}.key", f"items {seen[key]} and {index} both have the key {key!r}")
        budget.spend(size)  # the template is stored with each child as it is written
        spec = replace(_bound(child, template, known, budget), id=f"{step.step_id}[{key}]")
        title = _Titles(known, budget).of(child.title or f"{step.title}: {key}")
        made.append(_child(step, spec, title, index, lineage))
    return made


def _bound(child: StepSpec, template: StepSpec, scope: Scope, budget: ExpansionBudget) -> StepSpec:
    """Return the spec of one item: its templates are looked up now, and never again."""
    bound = bind(child, scope, budget)
    permissions = rendered(child.permissions, scope, budget)
    budget.spend(budget.size_of(permissions.as_json()))
    return replace(template, permissions=permissions, bound=bound)


def _child(step: Step, spec: StepSpec, title: str, index: int, lineage: _Lineage) -> NewStep:
    key = step_key(step.task_id, spec.id)
    return NewStep(
        key=key,
        task_id=step.task_id,
        session_id=step.session_id,
        step_id=spec.id,
        title=title,
        kind=spec.kind,
        spec=spec,
        priority=spec.priority or step.priority,
        pool=step.pool,
        needs=step.needs,
        definition=step.definition,
        model=step.model,
        max_attempts=1 + spec.retries,
        backoff_s=spec.backoff_s,
        on_failure=step.spec.on_item_failure or FailurePolicy.SKIP_DEPENDENTS,
        map_key=step.key,
        item_index=index,
        claim_mode=spec.claim,
        run=lineage.run(key, title, step.definition, step.model, step.spec.child_surface),
    )


def next_attempt(step: Step, last: Run, *, asked_by: Origin | None = None, model: str = "") -> NewRun:
    """Return the run of a step's next attempt: its own agent, the lineage and surface of the last.

    An attempt that somebody asked for is theirs, and may fail as often as the plan allows. ``model`` replaces the model
    of an agent.
    """
    identity = RunIdentity(
        session_id=last.identity.session_id,
        run_id=new_id("run"),
        agent_id=new_id("agent"),
        role=last.identity.role,
        definition=step.definition,
        parent_run_id=last.identity.parent_run_id,
        parent_agent_id=last.identity.parent_agent_id,
        task_id=step.task_id,
        step_key=step.key,
        step_title=step.title,
        model=(model or step.model) if step.model else "",
        origin=last.identity.origin if asked_by is None else asked_by,
    )
    additional = step.spec.retries + 1
    return NewRun(
        identity,
        last.surface,
        _token(),
        attempt=step.attempt + 1,
        retry_of=last.id,
        max_attempts=None if asked_by is None else step.attempt + additional,
    )


def retried_step(step: Step, last: Run, plan: PlanStep | None, surface_of: SurfaceOf, origin: Origin = OWN) -> NewStep:
    """Return a failed step as it is tried again: as it was, or as ``plan`` says now, with the run of that attempt."""
    run = next_attempt(step, last, asked_by=origin)
    made = NewStep(
        key=step.key,
        task_id=step.task_id,
        session_id=step.session_id,
        step_id=step.step_id,
        title=step.title,
        kind=step.kind,
        spec=step.spec,
        depends_on=step.depends_on,
        priority=step.priority,
        pool=step.pool,
        needs=step.needs,
        definition=step.definition,
        model=step.model,
        max_attempts=step.max_attempts,
        backoff_s=step.backoff_s,
        on_failure=step.on_failure,
        map_key=step.map_key,
        item_index=step.item_index,
        claim_mode=step.claim_mode,
        is_pull_worker=step.is_pull_worker,
    )
    if plan is None:
        return replace(made, run=run)
    surface, needed = _Surfaces(surface_of).of(plan)
    identity = replace(run.identity, definition=_definition(plan), model=plan.model)
    return replace(
        made,
        spec=_changed(step.spec, plan),
        pool=plan.pool,
        needs=_needs(plan, needed, projects_among(step.needs), plan.model),
        definition=_definition(plan),
        model=plan.model,
        run=replace(run, identity=identity, surface=surface),
    )


def _changed(spec: StepSpec, plan: PlanStep) -> StepSpec:
    """Return the spec with the instructions and tools of ``plan``; those of an item of a map are taken as they are."""
    tools = spec.allowed_tools if plan.allowed_tools is None else plan.allowed_tools
    if spec.bound is None:
        return replace(spec, instructions=plan.instructions, allowed_tools=tools)
    return replace(spec, bound=replace(spec.bound, instructions=plan.instructions), allowed_tools=tools)


def _definition(work: PlanStep) -> str:
    if work.claim is ClaimMode.PULL:
        return ""
    return work.agent if work.kind.traits.is_agent else f"{work.kind}:{work.call}"


def _model(work: PlanStep, default_model: str) -> str:
    is_own_agent = work.kind is StepKind.AGENT and work.claim is ClaimMode.ASSIGNED
    return (work.model or default_model) if is_own_agent else ""


def _key(template: str, item: Json, index: int, scope: Scope, budget: ExpansionBudget) -> str:
    """Return the key of an item: what ``key`` says, else the item when it is a short text or number, else its index."""
    if template:
        key = render_head(template, scope, budget, _READ_KEY_CHARS)
    elif isinstance(item, str | int) and not isinstance(item, bool):
        key = head_of(item, _READ_KEY_CHARS)
    else:
        key = str(index)
    clean = "".join(char if is_seen(char) and char not in "[]" else "_" for char in key).strip()
    if not clean:
        raise TemplateError("key", f"item {index} ({json_head(item, 60)}) has an empty key")
    return clean[:MAX_KEY_CHARS]


def _token() -> str:
    return secrets.token_hex(16)
