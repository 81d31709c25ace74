"""Sessions: the list, the state of each, live; and their end."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.context import READER, RUNNER, api_of, check_steering
from soong.orchestrator.http.events import TASKS_TOLD, EventStream, session_frames
from soong.orchestrator.http.schemas import Page, SessionDetail, page_of, respond
from soong.orchestrator.http.strict import Cursor, Limit, SessionId, StrictRoute
from soong.orchestrator.schemas.run import SessionSchema

router = APIRouter(route_class=StrictRoute, tags=["sessions"])


@router.get("/v1/sessions", response_model=Page[SessionSchema], dependencies=[READER])
async def list_sessions(
    request: Request,
    closed: Annotated[bool, Query(description="Closed ones too.")] = False,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Response:
    """List sessions, newest first."""
    store = api_of(request).client.store
    found = await store.sessions.session_page(include_closed=closed, before=cursor, limit=limit)
    return respond(page_of([SessionSchema.of(one) for one in found], limit, found[-1].id if found else ""))


@router.get("/v1/sessions/{session_id}", response_model=SessionDetail, dependencies=[READER])
async def show_session(request: Request, session_id: SessionId) -> Response:
    """Show a session: its rules, its newest tasks, what waits for an answer."""
    store = api_of(request).client.store
    session = await store.sessions.session(session_id)
    waiting = await store.consent.questions(session_id=session_id)
    detail = SessionDetail.of(
        session,
        tasks=[task.id for task in await store.tasks.list_tasks(session_id=session_id, limit=TASKS_TOLD)],
        approvals=[question.request.id for question in waiting if question.answer is None],
    )
    return respond(detail)


@router.get(
    "/v1/sessions/{session_id}/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events `session`, then `end`."}},
)
async def stream_session(request: Request, session_id: SessionId, caller: Caller = READER) -> Response:
    """Follow a session: the full state of its tasks and questions, at once and after every change.

    Each event `session` replaces the one before it, so a reader that connects again has lost nothing.
    """
    api = api_of(request)
    await api.client.store.sessions.session(session_id)
    return EventStream(session_frames(api, session_id), api, caller)


@router.post("/v1/sessions/{session_id}/close", response_model=SessionSchema)
async def close_session(request: Request, session_id: SessionId, caller: Caller = RUNNER) -> Response:
    """Close a session: it is looked at no more once its tasks have ended. Its owner's word is waited for."""
    api = api_of(request)
    session = await api.client.store.sessions.session(session_id)
    check_steering(caller, session)
    if not session.is_closed:
        await api.tasks_of(caller).close_session(session_id)
    return respond(SessionSchema.of(await api.client.store.sessions.session(session_id)))
