"""Asking a task's owner for something from the command line."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from soong.orchestrator.cli.console import say
from soong.orchestrator.cli.ids import find_task, opened_store
from soong.shared.core.errors import ConflictError
from soong.shared.core.settings import load_settings

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService
    from soong.shared.engine.tasks.step import Task


async def asked_of_task(text: str, ask: "Callable[[TaskService, Task], Awaitable[None]]", done: str) -> None:
    """Ask a task's owner for something and say when it is done; a service is started for it if need be.

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
        finally:
            await client.close()
    finally:
        await attachment.release()
    say(f"task {task.id} {done}")
