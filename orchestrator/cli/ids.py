"""The rows of a home or a deployment, for commands that open them, and requests to the owner of a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from soong.orchestrator.embedded.starter import living_service
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.metrics import still_running
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    pass

MANY = 1000


def has_no_rows(settings: Settings) -> bool:
    """Say whether nothing has run in this home yet."""
    return settings.is_embedded and not (settings.home / "soong.db").exists()


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """Open the rows for reading.

    Raises:
        UsageError: this home has none yet.
        UnavailableError, SchemaVersionError: they cannot be read.
    """
    if has_no_rows(settings):
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        yield store


async def newest_open_task(store: Store) -> Task:
    """Return the newest task that has not completed. Raises: UsageError when every task has."""
    for task in await store.tasks.list_tasks(limit=MANY):
        if task.status is not TaskStatus.COMPLETED:
            return task
    raise UsageError("every task has completed; name one to look at: soong tasks list")


async def deployment(settings: Settings) -> Settings:
    """Return settings that name the Redis of the living service, if there is one."""
    if settings.redis_url:
        return settings
    try:
        record = await living_service(settings)
    except UnavailableError:
        record = None
    return settings if record is None else settings.model_copy(update={"redis_url": record.redis_url})


async def still_running_in(store: Store, task_id: str) -> str:
    """Return what still runs of a task, in words; empty when all of it ends within a second."""
    words = ""
    for _ in range(10):
        held = await store.tasks.step_page(task_id, statuses=(StepStatus.RUNNING,))
        if not (words := still_running(held)):
            break
        await asyncio.sleep(0.1)
    return words
