"""Makes the rows of plans: a task with its steps and their first runs, the steps that are added to it later, and the
next attempts of steps.

Pure but for ids and tokens. Every lineage of a DAG comes from here, in the session's owner or the client that makes
the task, and never from a worker.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import structs
from msgspec.structs import replace

from soong.shared.core.errors import LimitExceededError, TemplateError
from soong.shared.core.identity import OWN, Origin, Role, RunIdentity, new_id, step_key
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET
from soong.shared.engine.runs.record import NewRun, Run
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.asks import FOLLOWS, ask_document
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR, OWN_PREFIX, Plan, scope_of
from soong.shared.engine.tasks.plan.template import Scope, render_head
from soong.shared.engine.tasks.problems import Problems
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepKind, StepSpec, TaskKind
from soong.shared.engine.tasks.step import NewStep, NewTask, Step, Task
from soong.shared.engine.wire.notifier import (
    PROTOCOL,
    PROTOCOLS,
    app_needed,
    declared,
    functions_needed,
    project_needed,
    projects_among,
    tools_needed,
)
from soong.shared.tools.surface import Surface

SurfaceOf: TypeAlias = Callable[[StepSpec], JsonObject]
"""Computes the stored surface of a step's run, under the session's policy (:mod:`soong.shared.tools.surface`).

It reads a step's kind, its agent definition and its allowed tools; its result is never changed."""

MAX_TITLE_CHARS = 200


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
    Raises: InvalidPlanError, a step would run on the script model and has no script.
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
    is_limited = plan.limits != NO_BUDGET
    lineage = Lineage(session.id, task_id, root.run_id, root.agent_id, project, root.origin, is_limited)
    steps = _new_steps(plan.steps, lineage, inputs, surface_of, default_model)
    return NewTask(
        id=task_id,
        session_id=session.id,
        title=plan.title,
        plan=plan.document,
        inputs=inputs,
        created_us=now_us,
        root_run=NewRun(root, {}, secrets.token_hex(16)),
        steps=steps,
        limits=plan.limits,
        tags=plan.tags,
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
    """Return a task whose root run is an agent with a goal: ``spec`` is its work, ``role`` the limit of its rights.

    ``follows`` is the run whose conversation it continues, in this session or in the one that it forks.
    Raises: ValueError, the role is that of a child, which never starts agents.
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
        root_run=NewRun(identity, surface, secrets.token_hex(16)),
        steps=(),
        kind=TaskKind.ASK,
    )


def models_of(plan: Plan, default_model: str) -> frozenset[str]:
    """Return the models that the agents of a plan run on, those of its map steps' items among them."""
    return frozenset(filter(None, (_model(step.work, default_model) for step in plan.steps)))


def check_models(steps: Sequence[StepSpec], default_model: str, source: str) -> None:
    """A script model without a script can do nothing: say so before anything is written. Raises: InvalidPlanError."""
    problems = Problems()
    for index, step in enumerate(steps):
        if _model(step.work, default_model) == "script" and not step.work.script:
            place = f"{source}{'' if source.endswith('add_steps') else ' steps'}[{index}]{'.step' if step.step else ''}"
            problem = f"step {step.id!r} has no script and would run on the model 'script'"
            problems.add(place, problem, "choose a model (`--model provider:name`) or add a `script:`")
    problems.refuse()


def grown(
    steps: Sequence[StepSpec],
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
    Raises: InvalidPlanError, a step would run on the script model and has no script.
    """
    check_models(steps, default_model, "update add_steps")
    is_limited = bool(task.plan.get("limits"))
    lineage = Lineage(task.session_id, task.id, root.run_id, root.agent_id, project, origin, is_limited)
    return _new_steps(steps, lineage, task.inputs, surface_of, default_model)


class Titles(Value):
    """Looks up the references of titles. One that cannot be looked up (yet) stays as it was written."""

    scope: Scope
    budget: ExpansionBudget

    def of(self, title: str) -> str:
        try:
            return render_head(title, self.scope, self.budget, MAX_TITLE_CHARS)
        except TemplateError:
            return title[:MAX_TITLE_CHARS]


class Surfaces(Value):
    """The surfaces of one plan's steps, with what their tools need. Steps that ask for the same share one object."""

    compute: SurfaceOf
    _known: dict[tuple[object, ...], tuple[JsonObject, Sequence[str]]] = msgspec.field(default_factory=dict)

    def of(self, step: StepSpec) -> tuple[JsonObject, Sequence[str]]:
        """Return a step's surface, with the capabilities of a worker that has its tools.

        One that is pulled has none: the run that claims it uses its own.
        """
        if step.claim is ClaimMode.PULL:
            return {}, ()
        asked = (step.kind, step.role, step.agent, step.allowed_tools, *sorted(step.settings.items()))
        if asked not in self._known:
            surface = self.compute(step)
            needed = tools_needed(Surface.from_json(surface).tools) if "decisions" in surface else ()
            self._known[asked] = surface, needed
        return self._known[asked]


class Lineage(Value):
    """The values that all runs of one task share."""

    session_id: str
    task_id: str
    root_run_id: str
    root_agent_id: str
    project: tuple[str, ...] = ()
    """The capabilities that a worker needs for the session's project."""
    origin: Origin = OWN
    is_limited: bool = False
    """The task has limits."""

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
        return NewRun(identity, surface, secrets.token_hex(16))


def _new_steps(
    steps: Sequence[StepSpec], lineage: Lineage, inputs: JsonObject, surface_of: SurfaceOf, default_model: str
) -> tuple[NewStep, ...]:
    titles = Titles(scope_of(inputs, {}), ExpansionBudget("the titles of the steps"))
    surfaces = Surfaces(surface_of)
    made = []
    for step in steps:
        work = step.work
        surface, needed = surfaces.of(work)
        model = _model(work, default_model)
        # A map step stores the items' surface: its expansion needs neither registry nor policy, nor changes with them.
        is_map = step.kind.traits.has_items
        spec = replace(step, depends_on=(), child_surface=surface if is_map else {}, is_limited=lineage.is_limited)
        if spec.step is not None:
            spec = replace(spec, step=replace(spec.step, is_limited=lineage.is_limited))
        key, title, definition = step_key(lineage.task_id, step.id), titles.of(step.title), definition_of(work)
        new = NewStep(
            key=key,
            task_id=lineage.task_id,
            session_id=lineage.session_id,
            spec=spec,
            title=title,
            depends_on=tuple(step_key(lineage.task_id, parent) for parent in step.depends_on),
            priority=step.priority,
            pool=work.pool,
            needs=needs_of(work, needed, lineage.project, model),
            definition=definition,
            model=model,
            max_attempts=1 + step.retries,
            on_failure=step.on_failure or FailurePolicy.SKIP_DEPENDENTS,
            run=None if is_map else lineage.run(key, title, definition, model, surface, work.role),
        )
        made.append(new)
    return tuple(made)


def needs_of(step: StepSpec, needed: Sequence[str], project: Sequence[str], model: str) -> tuple[str, ...]:
    """Return the capabilities that a worker must announce: the plan's needs, and those of the step's parts.

    These are the version of this program, and the called function or the Celery app; or the needs of the surface's
    tools (``needed``), their project, and the scripted agent of a step without a model, or the registered agent.
    """
    if not step.kind.traits.is_agent:
        called = [app_needed(step.app)] if step.kind is StepKind.CELERY else functions_needed([step.call])
        return (*declared(step.needs), f"{PROTOCOLS}{PROTOCOL}", *called)
    own = step.agent if step.agent.startswith(OWN_PREFIX) else ""
    script = functions_needed([step.script if model == "script" else "", own])
    return (*declared(step.needs), f"{PROTOCOLS}{PROTOCOL}", *script, *needed, *(project if needed else ()))


def definition_of(work: StepSpec) -> str:
    if work.claim is ClaimMode.PULL:
        return ""
    return work.agent if work.kind.traits.is_agent else f"{work.kind}:{work.call}"


def _model(work: StepSpec, default_model: str) -> str:
    return (work.model or default_model) if work.is_own_agent else ""


def next_attempt(step: Step, last: Run, *, asked_by: Origin | None = None, model: str = "") -> NewRun:
    """Return the run of a step's next attempt: its own agent, the lineage and surface of the last.

    An attempt that somebody asked for is theirs, and may fail as often as the plan allows. ``model`` replaces the model
    of an agent.
    """
    identity = replace(
        last.identity,
        run_id=new_id("run"),
        agent_id=new_id("agent"),
        definition=step.definition,
        step_title=step.title,
        model=(model or step.model) if step.model else "",
        origin=last.identity.origin if asked_by is None else asked_by,
    )
    additional = step.spec.retries + 1
    return NewRun(
        identity,
        last.surface,
        secrets.token_hex(16),
        attempt=step.attempt + 1,
        retry_of=last.id,
        max_attempts=None if asked_by is None else step.attempt + additional,
    )


def retried_step(step: Step, last: Run, plan: StepSpec | None, surface_of: SurfaceOf, origin: Origin = OWN) -> NewStep:
    """Return a failed step for its next attempt: unchanged, or as in ``plan``, with the run of that attempt."""
    run = next_attempt(step, last, asked_by=origin)
    made = NewStep(**(structs.asdict(step) | {"run": run}))
    if plan is None:
        return made
    surface, needed = Surfaces(surface_of).of(plan)
    identity = replace(run.identity, definition=definition_of(plan), model=plan.model)
    bound = plan.bound and replace(plan.bound, instructions=plan.instructions)  # an item's text is taken as it is
    return replace(
        made,
        spec=replace(plan, bound=bound),
        pool=plan.pool,
        needs=needs_of(plan, needed, projects_among(step.needs), plan.model),
        definition=definition_of(plan),
        model=plan.model,
        run=replace(run, identity=identity, surface=surface),
    )


def check_total(standing: int, added: int, limit: int) -> None:
    """Raises: LimitExceededError when the run would have more than ``limit`` children; 0 means unlimited."""
    setting = "SOONG_MAX_CHILDREN_PER_RUN"
    if limit and added and standing + added > limit:
        raise LimitExceededError(f"the run would have {standing + added} children, and {setting} is {limit}")
