"""Makes the next attempt of a step: its run, and the step as it is tried again. Pure but for ids and tokens."""

from msgspec import structs
from msgspec.structs import replace

from soong.shared.core.identity import OWN, Origin, RunIdentity
from soong.shared.core.ids import new_id
from soong.shared.engine.runs.record import NewRun, Run
from soong.shared.engine.tasks.lineage import new_token
from soong.shared.engine.tasks.new_tasks import SurfaceOf, Surfaces, definition_of, needs_of
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


def retried_step(step: Step, last: Run, plan: StepSpec | None, surface_of: SurfaceOf, origin: Origin = OWN) -> NewStep:
    """Return a failed step as it is tried again: as it was, or as ``plan`` says now, with the run of that attempt."""
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
