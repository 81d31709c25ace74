"""The rows of a home or a deployment, for commands that open them, and requests to the owner of a task."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from soong.orchestrator.cli.console import say
from soong.orchestrator.embedded.starter import attach, living_service
from soong.orchestrator.operations.ids import find_task
from soong.shared.core.errors import ConflictError, UnavailableError, UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.metrics import still_running
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService

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


async def asked_of_task(
    text: str, ask: "Callable[[TaskService, Task], Awaitable[None]]", done: str, *, stops: bool = False
) -> None:
    """Ask a task's owner for something and report when it is done; a service is started for it if need be.

    With ``stops`` the report names what still runs of the task.

    Raises: NotFoundError, UsageError; ConflictError when the task is over, or its owner's refusal.
    """
    from soong.orchestrator.client.bootstrap import open_client

    settings = load_settings()
    async with opened_store(settings) as store:
        # Looked up before a service is started for it: a wrong id, or a task that is over, starts nothing.
        task = await find_task(store, text)
    if task.status.is_terminal:
        raise ConflictError(f"task {task.id} is {task.status}: it is over; `soong tasks retry` runs it again")
    attachment = await attach(settings, tell=say)
    try:
        async with await open_client(attachment.settings) as client:
            await ask(client.tasks, task)
            left = await still_running_in(client.store, task.id) if stops else ""
    finally:
        await attachment.release()
    say(", ".join(one for one in (f"task {task.id} {done}", left) if one))


async def still_running_in(store: Store, task_id: str) -> str:
    """Return what still runs of a task, in words; empty when all of it ends within a second."""
    words = ""
    for _ in range(10):
        held = await store.tasks.step_page(task_id, statuses=(StepStatus.RUNNING,))
        if not (words := still_running(held)):
            break
        await asyncio.sleep(0.1)
    return words
