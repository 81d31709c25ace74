"""What a retry runs again, as data."""

from msgspec.structs import replace

from soong.shared.engine.tasks.rerun import rerun
from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step
from tests.model.builders import make_children, make_map, make_step, open_session, open_task
from tests.model.clock import START_US
from tests.model.memory import MemoryStore


async def rows_of_a_map_that_went_on_without_its_dependency() -> list[Step]:
    """Return a step whose failure was kept, the map step below it with one child that failed, and a free map step."""
    store = MemoryStore()
    own = await open_session(store)
    kept = make_step("a", on_failure=FailurePolicy.KEEP)
    task_id = await open_task(store, own, kept, make_map("m", depends_on=["a"]), make_map("free"))
    steps = {step.step_id: step for step in await store.tasks.steps(task_id)}
    root = (await store.runs.run((await store.tasks.task(task_id)).root_run_id)).identity
    await store.tasks.expand(own, steps["free"].key, make_children(steps["free"], root, "i"), now_us=START_US)
    store.rows.steps[steps["m"].key] = replace(steps["m"], status=StepStatus.EXPANDING)
    await store.tasks.expand(own, steps["m"].key, make_children(steps["m"], root, "i"), now_us=START_US)
    return [replace(step, status=StepStatus.FAILED) for step in await store.tasks.steps(task_id)]


async def test_a_map_step_that_waits_again_for_a_dependency_is_expanded_again() -> None:
    steps = await rows_of_a_map_that_went_on_without_its_dependency()

    again = rerun(steps)

    assert [key.partition("/")[2] for key in again.regrown] == ["m"]
    assert [step.step_id for step in again.attempts] == ["a", "free[i]"]
