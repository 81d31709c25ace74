"""Asking a task's owner for something from the command line."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from soong.orchestrator.cli.console import say
from soong.orchestrator.cli.ids import find_task, opened_store
from soong.shared.core.errors import ConflictError
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.metrics import still_running
from soong.shared.engine.tasks.status import StepStatus

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService
    from soong.shared.engine.tasks.step import Task
    from soong.shared.storage.store import Store


async def asked_of_task(
    text: str, ask: "Callable[[TaskService, Task], Awaitable[None]]", done: str, *, stops: bool = False
) -> None:
    """Ask a task's owner for something and report when it is done; a service is started for it if need be.

    With ``stops`` the report names what still runs of the task.

    Raises: NotFoundError, UsageError; ConflictError when the task is over, or its owner's refusal.
    """
    from soong.orchestrator.client.bootstrap import open_client
    from soong.orchestrator.embedded.starter import attach

    settings = load_settings()
    async with opened_store(settings) as store:
        # Looked up before a service is started for it: a wrong id, or a task that is over, starts nothing.
        task = await find_task(store, text)
    if task.status.is_terminal:
        raise ConflictError(f"task {task.id} is {task.status}: it is over; `soong tasks retry` runs it again")
    attachment = await attach(settings, tell=say)
    try:
        client = await open_client(attachment.settings)
        try:
            await ask(client.tasks, task)
            left = await still_running_in(client.store, task.id) if stops else ""
        finally:
            await client.close()
    finally:
        await attachment.release()
    say(", ".join(one for one in (f"task {task.id} {done}", left) if one))


async def still_running_in(store: "Store", task_id: str) -> str:
    """Return what still runs of a task, in words; empty when all of it ends within a second."""
    words = ""
    for _ in range(10):
        held = await store.tasks.step_page(task_id, statuses=(StepStatus.RUNNING,))
        if not (words := still_running(held)):
            break
        await asyncio.sleep(0.1)
    return words
