"""Makes the next attempt of a step: its run, and the step as it is tried again. Pure but for ids and tokens."""

from msgspec.structs import replace

from soong.shared.core.identity import OWN, Origin, RunIdentity
from soong.shared.core.ids import new_id
from soong.shared.engine.runs.record import NewRun, Run
from soong.shared.engine.tasks.lineage import new_token
from soong.shared.engine.tasks.new_tasks import SurfaceOf, Surfaces, definition_of, needs_of
from soong.shared.engine.tasks.plan.plan import PlanStep
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewStep, Step
from soong.shared.engine.wire.capabilities import projects_among


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
        new_token(),
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
    surface, needed = Surfaces(surface_of).of(plan)
    identity = replace(run.identity, definition=definition_of(plan), model=plan.model)
    return replace(
        made,
        spec=_changed(step.spec, plan),
        pool=plan.pool,
        needs=needs_of(plan, needed, projects_among(step.needs), plan.model),
        definition=definition_of(plan),
        model=plan.model,
        run=replace(run, identity=identity, surface=surface),
    )


def _changed(spec: StepSpec, plan: PlanStep) -> StepSpec:
    """Return the spec with the instructions and tools of ``plan``; those of an item of a map are taken as they are."""
    tools = spec.allowed_tools if plan.allowed_tools is None else plan.allowed_tools
    if spec.bound is None:
        return replace(spec, instructions=plan.instructions, allowed_tools=tools)
    return replace(spec, bound=replace(spec.bound, instructions=plan.instructions), allowed_tools=tools)
