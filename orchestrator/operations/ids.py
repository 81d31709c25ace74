"""Ids as people type them: their beginning or their end, as much as fits one thing alone."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import APIRouter, Query

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.operations.context import Reader, Service
from soong.orchestrator.operations.documents import FoundId
from soong.orchestrator.operations.strict import StrictRoute
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.storage.store import Store

router = APIRouter(route_class=StrictRoute, tags=["service"])

MANY: Final = 1000
LEAST_CHARS: Final = 4
Kind: TypeAlias = Literal["task", "run", "session", "approval"]
LISTS: Final[Mapping[str, str]] = {
    "task": "soong tasks list",
    "run": "soong runs list",
    "session": "soong tasks list --json",
    "permission request": "soong approvals list",
}
"""The commands that list ids."""


@router.get("/v1/ids/{kind}")
async def find_id(
    service: Service,
    _caller: Reader,
    kind: Kind,
    text: Annotated[str, Query(max_length=400, description="At least four characters of its beginning or end.")],
) -> FoundId:
    """Find the one id that begins or ends so; a run also by its step's key, a session by the id of a task of it."""
    return FoundId(id=await FINDERS[kind](service.store, text))


async def find_task(store: Store, text: str) -> str:
    """Return the id of a task, or of the only one whose id begins or ends so.

    All finders raise:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    with suppress(NotFoundError):
        return (await store.tasks.task(text)).id
    return only(text, "task", [one.id for one in await store.tasks.list_tasks(limit=MANY) if fits(one.id, text)])


async def find_session(store: Store, text: str) -> str:
    """Return the id of a session, which is named by its own id or that of one of its tasks."""
    tasks = await store.tasks.list_tasks(limit=MANY)
    named = [task for task in tasks if fits(task.session_id, text) or fits(task.id, text)]
    return only(text, "session", sorted({task.session_id for task in named}))


async def find_run(store: Store, text: str) -> str:
    """Return the id of a run, which is named by its own id or by the key of its step."""
    with suppress(NotFoundError):
        return (await store.runs.run(text)).id
    if "/" in text:
        return (await store.runs.run((await store.tasks.step(text)).run_id)).id
    return only(text, "run", [one.id for one in await store.runs.run_page(limit=MANY) if fits(one.id, text)])


async def find_question(store: Store, text: str) -> str:
    """Return the id of a question; what waits goes before what is closed."""
    with suppress(NotFoundError):
        return (await question_of(store.consent, text)).request.id
    found: list[str] = []
    for include_closed in (False, True):
        listed = await store.consent.questions(include_closed=include_closed, limit=MANY)
        found = found or [one.request.id for one in listed if fits(one.request.id, text)]
    return only(text, "permission request", found)


FINDERS: Final[Mapping[Kind, Callable[[Store, str], Awaitable[str]]]] = {
    "task": find_task,
    "run": find_run,
    "session": find_session,
    "approval": find_question,
}


def only(text: str, kind: str, found: Sequence[str]) -> str:
    """Return the one id that ``text`` fits. Raises: NotFoundError; UsageError when it fits several."""
    if not found:
        raise NotFoundError(kind, text)
    if len(found) > 1:
        raise UsageError(f"{text!r} fits {len(found)} {kind}s; type more of the id ({LISTS[kind]})")
    return found[0]


def fits(key: str, text: str) -> bool:
    """Say whether an id is meant by what somebody typed: its beginning, with or without its kind, or its end."""
    body = key.partition("_")[2]
    return len(text) >= LEAST_CHARS and (key.startswith(text) or body.startswith(text) or key.endswith(text))
