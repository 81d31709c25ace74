"""Raising the limits of a task on the command line (DIS-07)."""

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.task_limits import limits_from, limits_of, raise_limits
from soong.shared.core.errors import ConflictError, InvalidPlanError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget, session_scope, task_scope
from soong.shared.engine.tasks.spec import TaskStatus
from tests.contract.scene import open_scene
from tests.model.memory import MemoryStore

pytestmark = pytest.mark.spec("DIS-07")


def test_limits_are_read_by_their_names_in_plans() -> None:
    assert limits_from({"max_turns": 50, "wall_s": 1.5}, "") == Budget(turns=50, wall_us=1_500_000)
    assert limits_from({"tokens": 10, "cost_usd": 0.5}, "") == Budget(10, 500_000)
    assert limits_from({}, "") == NO_BUDGET


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"turns": 5}, "--limit turns: unknown field 'turns'; did you mean 'max_turns'?"),
        ({"tokens": "many"}, "--limit tokens: 'many' cannot be used; write an integer above 0"),
    ],
    ids=["unknown", "no number"],
)
def test_what_is_no_limit_is_refused_with_a_fix(given: dict[str, Json], words: str) -> None:
    with pytest.raises(InvalidPlanError) as refused:
        limits_from(given, "--limit")

    assert str(refused.value) == words


async def test_only_the_named_limits_change_and_a_task_without_limits_gets_none() -> None:
    scene = await open_scene(MemoryStore())
    budgets = scene.store.budgets
    limited, plain = [await scene.store.tasks.task(await scene.task(name)) for name in ("a", "b")]
    await budgets.set_budget(task_scope(limited.id), Budget(tokens=5, turns=3))

    await raise_limits(budgets, limited, of_session=NO_BUDGET, of_task=Budget(turns=9))
    with pytest.raises(UsageError, match="has no limits; write `limits:` into its plan"):
        await raise_limits(budgets, plain, of_session=Budget(tokens=9), of_task=Budget(turns=9))

    scopes = [task_scope(limited.id), session_scope(plain.session_id)]
    (state,) = (await budgets.budgets(scopes, day="2026-11-24")).values()
    assert state.budget == Budget(tokens=5, turns=9)
    assert await limits_of(scene.store, plain) == ()


async def test_nothing_is_raised_of_a_completed_task() -> None:
    scene = await open_scene(MemoryStore())
    budgets = scene.store.budgets
    task = replace(await scene.store.tasks.task(await scene.task("a")), status=TaskStatus.COMPLETED)

    with pytest.raises(ConflictError, match=f"`soong budget {task.session_id} --set`"):
        await raise_limits(budgets, task, of_session=Budget(tokens=9), of_task=NO_BUDGET)
    await raise_limits(budgets, task, of_session=NO_BUDGET, of_task=NO_BUDGET)

    assert await budgets.budgets([session_scope(task.session_id)], day="2026-11-24") == {}
