"""Finding rows by the ids that people type."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from soong.orchestrator.embedded.starter import living_service
from soong.shared.core.errors import NotFoundError, UnavailableError, UsageError
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

MANY = 1000
_T = TypeVar("_T")


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


async def find_task(store: Store, text: str) -> Task:
    """Return the task of that id, or the only one that begins or ends so.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    try:
        return await store.tasks.task(text)
    except NotFoundError:
        found = [task for task in await store.tasks.list_tasks(limit=MANY) if fits(task.id, text)]
        if not found:
            raise
    return only(found, text, "tasks", "soong tasks list")


async def last_ask(store: Store, text: str) -> Task:
    """Return the newest ask of a session, which is named by its own id or that of one of its tasks.

    Raises:
        NotFoundError: there is no such session, or it has no ask.
        UsageError: the text fits several sessions.
    """
    tasks = await store.tasks.list_tasks(limit=MANY)
    sessions = sorted({task.session_id for task in tasks if fits(task.session_id, text) or fits(task.id, text)})
    asks = [task for task in tasks if task.session_id in sessions and task.kind is TaskKind.ASK]
    if not asks:
        raise NotFoundError("session with an ask", text)
    only(sessions, text, "sessions", "soong tasks list --json")
    return asks[0]


async def find_session(store: Store, text: str) -> str:
    """Return the id of a session, which is named by its own id or that of one of its tasks.

    Raises:
        NotFoundError: there is no such session.
        UsageError: the text fits several.
    """
    tasks = await store.tasks.list_tasks(limit=MANY)
    sessions = sorted({task.session_id for task in tasks if fits(task.session_id, text) or fits(task.id, text)})
    if not sessions:
        raise NotFoundError("session", text)
    only(sessions, text, "sessions", "soong tasks list --json")
    return sessions[0]


async def newest_open_task(store: Store) -> Task:
    """Return the newest task that has not completed. Raises: UsageError when every task has."""
    for task in await store.tasks.list_tasks(limit=MANY):
        if task.status is not TaskStatus.COMPLETED:
            return task
    raise UsageError("every task has completed; name one to look at: soong tasks list")


async def find_run(store: Store, text: str) -> Run:
    """Return the run of that id, of that step key, or the only recent one that begins or ends so.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    try:
        return await store.runs.run(text)
    except NotFoundError:
        if "/" in text:
            return await store.runs.run((await store.tasks.step(text)).run_id)
        found = [run for run in await store.runs.list_runs(limit=100_000) if fits(run.id, text)]
        if not found:
            raise
    return only(found, text, "runs", "soong runs list")


async def deployment(settings: Settings) -> Settings:
    """Return settings that name the Redis of the living service, if there is one."""
    if settings.redis_url:
        return settings
    try:
        record = await living_service(settings)
    except UnavailableError:
        record = None
    return settings if record is None else settings.model_copy(update={"redis_url": record.redis_url})


def only(found: Sequence[_T], text: str, what: str, command: str) -> _T:
    """Return the one row that ``text`` fits; ``command`` lists them. Raises: UsageError when it fits several."""
    if len(found) > 1:
        raise UsageError(f"{text!r} fits {len(found)} {what}; type more of the id ({command})")
    return found[0]


def fits(key: str, text: str) -> bool:
    """Say whether an id is meant by what somebody typed: its beginning, with or without its kind, or its end."""
    body = key.partition("_")[2]
    return len(text) >= 4 and (key.startswith(text) or body.startswith(text) or key.endswith(text))
