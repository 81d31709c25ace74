"""Ids as people type them: their beginning or their end, as much as fits one thing alone."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Query

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.operations.context import Reader, Service
from soong.orchestrator.operations.documents import FoundId
from soong.orchestrator.operations.strict import StrictRoute
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.request import Question
from soong.shared.storage.store import Store

router = APIRouter(route_class=StrictRoute, tags=["service"])

MANY: Final = 1000
LEAST_CHARS: Final = 4
_T = TypeVar("_T")
Kind: TypeAlias = Literal["task", "run", "session", "approval"]


@router.get("/v1/ids/{kind}")
async def find_id(
    service: Service,
    _caller: Reader,
    kind: Kind,
    text: Annotated[str, Query(max_length=400, description="At least four characters of its beginning or end.")],
) -> FoundId:
    """Find the one id that begins or ends so; a run also by its step's key, a session by the id of a task of it."""
    return FoundId(id=await FINDERS[kind](service.store, text))


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


async def _sessions(store: Store, text: str) -> tuple[Sequence[Task], Sequence[str]]:
    """Return the newest tasks, and the sessions of which one, or a task in it, has such an id."""
    tasks = await store.tasks.list_tasks(limit=MANY)
    return tasks, sorted({task.session_id for task in tasks if fits(task.session_id, text) or fits(task.id, text)})


async def last_ask(store: Store, text: str) -> Task:
    """Return the newest ask of a session, which is named by its own id or that of one of its tasks.

    Raises:
        NotFoundError: there is no such session, or it has no ask.
        UsageError: the text fits several sessions.
    """
    tasks, sessions = await _sessions(store, text)
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
    _, sessions = await _sessions(store, text)
    if not sessions:
        raise NotFoundError("session", text)
    return only(sessions, text, "sessions", "soong tasks list --json")


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
        found = [run for run in await store.runs.run_page(limit=MANY) if fits(run.id, text)]
        if not found:
            raise
    return only(found, text, "runs", "soong runs list")


async def find_question(store: Store, text: str) -> Question:
    """Return the question of that id, or the only one that begins or ends so; what waits goes before what is closed.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    try:
        return await question_of(store.consent, text)
    except NotFoundError:
        found: Sequence[Question] = ()
        for include_closed in (False, True):
            listed = await store.consent.questions(include_closed=include_closed, limit=MANY)
            found = found or [one for one in listed if fits(one.request.id, text)]
        if not found:
            raise
    return only(found, text, "questions", "soong approvals list")


async def _task_id(store: Store, text: str) -> str:
    return (await find_task(store, text)).id


async def _run_id(store: Store, text: str) -> str:
    return (await find_run(store, text)).id


async def _question_id(store: Store, text: str) -> str:
    return (await find_question(store, text)).request.id


FINDERS: Final[Mapping[Kind, Callable[[Store, str], Awaitable[str]]]] = {
    "task": _task_id,
    "run": _run_id,
    "session": find_session,
    "approval": _question_id,
}


def only(found: Sequence[_T], text: str, what: str, command: str) -> _T:
    """Return the one row that ``text`` fits; ``command`` lists them. Raises: UsageError when it fits several."""
    if len(found) > 1:
        raise UsageError(f"{text!r} fits {len(found)} {what}; type more of the id ({command})")
    return found[0]


def fits(key: str, text: str) -> bool:
    """Say whether an id is meant by what somebody typed: its beginning, with or without its kind, or its end."""
    body = key.partition("_")[2]
    return len(text) >= LEAST_CHARS and (key.startswith(text) or body.startswith(text) or key.endswith(text))
