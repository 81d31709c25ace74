"""The limits of a task as people see them: what is used of each, and how they are raised (DIS-07)."""

import time
from collections.abc import Mapping
from typing import Final

from msgspec.structs import fields, replace

from soong.shared.core.errors import ConflictError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import (
    MICRO,
    NO_BUDGET,
    Budget,
    BudgetState,
    BudgetStore,
    session_scope,
    task_scope,
)
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

NAMES: Final[Mapping[str, str]] = {
    "turns": "max_turns",
    "tokens": "tokens",
    "microusd": "cost_usd",
    "wall_us": "wall_s",
}
"""The fields of a budget by the names of limits in plans."""


class TaskLimit(Value):
    """A limit by its name in plans, in the plan's unit. ``used`` counts requests under way as they may cost at most."""

    name: str
    limit: float
    used: float


async def limits_of(store: Store, task: Task) -> tuple[TaskLimit, ...]:
    """Return the limits of a task whose plan has any."""
    now_us = time.time_ns() // 1000
    scope = task_scope(task.id)
    state = (await store.budgets.budgets([scope], day=utc_date(now_us))).get(scope)
    return () if state is None else _with_use(state, task.ended_us or now_us)


def _with_use(state: BudgetState, end_us: int) -> tuple[TaskLimit, ...]:
    used, held, limits = state.used, state.reserved, state.budget
    passed_us = 0 if state.started_us is None else max(0, end_us - state.started_us)
    charged = {
        "turns": used.turns + held.turns,
        "tokens": used.tokens + held.tokens,
        "microusd": (used.microusd or 0) + (held.microusd or 0),
        "wall_us": passed_us,
    }
    return tuple(
        TaskLimit(name, _in_unit(field, limit), _in_unit(field, charged[field]))
        for field, name in NAMES.items()
        if (limit := getattr(limits, field)) is not None
    )


def _in_unit(field: str, amount: int) -> float:
    """Return an amount in the unit of plans: dollars, seconds, or its number."""
    return amount / MICRO if field in ("microusd", "wall_us") else amount


def limits_from(given: Mapping[str, Json], where: str) -> Budget:
    """Return limits by their names in plans; ``where`` names them in errors. Raises: UsageError."""
    if not given:
        return NO_BUDGET
    from soong.shared.engine.tasks.plan.reader import (
        TaskLimitsDocument,  # pydantic models: a command that needs them alone
        planned_limits,
    )
    from soong.shared.engine.tasks.plan.validation import DocumentReader
    from soong.shared.engine.tasks.problems import Problems

    problems = Problems(where)
    said = DocumentReader.of(TaskLimitsDocument).read(dict(given), (), problems.report)
    problems.refuse()
    return NO_BUDGET if said is None else planned_limits(said)


async def raise_limits(budgets: BudgetStore, task: Task, *, of_session: Budget, of_task: Budget) -> None:
    """Set what a session may use in all, and the named limits of a task, in all from its beginning; the others stay.
    Raises: UsageError, the task has no limits; nothing was changed; ConflictError, the task is completed; nothing was
    changed.
    """
    is_asked = of_session != NO_BUDGET or of_task != NO_BUDGET
    if is_asked and task.status is TaskStatus.COMPLETED:
        raise ConflictError(
            f"task {task.id} is completed; `soong budget {task.session_id} --set` changes what its session may use"
        )
    if of_task != NO_BUDGET:
        await _raise_task(budgets, task, of_task)
    if of_session != NO_BUDGET:
        await budgets.set_budget(session_scope(task.session_id), of_session)


async def _raise_task(budgets: BudgetStore, task: Task, said: Budget) -> None:
    scope = task_scope(task.id)
    found = await budgets.budgets([scope], day=utc_date(time.time_ns() // 1000))
    if scope not in found:
        raise UsageError(f"task {task.id} has no limits; write `limits:` into its plan and run that")
    named = {one.name: getattr(said, one.name) for one in fields(said)}
    changed = {name: value for name, value in named.items() if value is not None}
    await budgets.set_budget(scope, replace(found[scope].budget, **changed))
