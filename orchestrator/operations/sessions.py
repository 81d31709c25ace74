"""Sessions: the list, the state of each, live; and their end."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from soong.orchestrator.operations.context import Reader, Runner, Service, check_steering
from soong.orchestrator.operations.documents import Page, SessionDetail, page_of
from soong.orchestrator.operations.events import TASKS_TOLD, EventStream, session_frames
from soong.orchestrator.operations.strict import Cursor, Limit, SessionId, StrictRoute
from soong.orchestrator.schemas.run import SessionSchema

router = APIRouter(route_class=StrictRoute, tags=["sessions"])


@router.get("/v1/sessions")
async def list_sessions(
    service: Service,
    _caller: Reader,
    closed: Annotated[bool, Query(description="Closed ones too.")] = False,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Page[SessionSchema]:
    """List sessions, newest first."""
    store = service.store
    found = await store.sessions.session_page(include_closed=closed, before=cursor, limit=limit)
    return page_of([SessionSchema.of(one) for one in found], limit, found[-1].id if found else "")


@router.get("/v1/sessions/{session_id}")
async def show_session(service: Service, _caller: Reader, session_id: SessionId) -> SessionDetail:
    """Show a session: its rules, its newest tasks, what waits for an answer."""
    store = service.store
    session = await store.sessions.session(session_id)
    waiting = await store.consent.questions(session_id=session_id)
    return SessionDetail.of(
        session,
        tasks=[task.id for task in await store.tasks.list_tasks(session_id=session_id, limit=TASKS_TOLD)],
        approvals=[question.request.id for question in waiting if question.answer is None],
    )


@router.get(
    "/v1/sessions/{session_id}/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events `session`, then `end`."}},
)
async def stream_session(service: Service, caller: Reader, session_id: SessionId) -> Response:
    """Follow a session: the full state of its tasks and questions, at once and after every change.

    Each event `session` replaces the one before it, so a reader that connects again has lost nothing.
    """
    await service.store.sessions.session(session_id)
    return EventStream(session_frames(service, session_id), service, caller)


@router.post("/v1/sessions/{session_id}/close")
async def close_session(service: Service, caller: Runner, session_id: SessionId) -> SessionSchema:
    """Close a session: it is looked at no more once its tasks have ended. Its owner's word is waited for."""
    session = await service.store.sessions.session(session_id)
    check_steering(caller, session)
    if not session.is_closed:
        await service.tasks_of(caller).close_session(session_id)
    return SessionSchema.of(await service.store.sessions.session(session_id))
