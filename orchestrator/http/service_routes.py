"""The service itself: is it there, what does it hold, who am I."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.client.usage import usage_totals
from soong.orchestrator.client.workers import list_workers
from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.context import Needs, api_of
from soong.orchestrator.http.parameters import InSession
from soong.orchestrator.http.schemas import CallerSchema, HealthSchema, respond
from soong.orchestrator.http.strict import StrictRoute
from soong.orchestrator.schemas.usage import UsageSums
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.core.clock import rfc3339
from soong.shared.engine.runs.record import UsageBy
from soong.shared.permissions.access.token import Right

router = APIRouter(route_class=StrictRoute)

READER = Depends(Needs(Right.READ))


@router.get("/v1/health", response_model=HealthSchema, tags=["service"])
async def health() -> Response:
    """Report that this process answers, without a query. Needs no token."""
    return respond(HealthSchema(status="ok"))


@router.get("/v1/ready", response_model=HealthSchema, tags=["service"])
async def ready(request: Request) -> Response:
    """Say whether the database answers: 200 or 503. Needs no token."""
    await api_of(request).look_at_rows()
    return respond(HealthSchema(status="ok"))


@router.get("/v1/me", response_model=CallerSchema, tags=["service"])
async def me(caller: Caller = READER) -> Response:
    """Say who the token speaks for, and what it may do."""
    return respond(caller_document(caller))


def caller_document(caller: Caller) -> CallerSchema:
    expires_us = caller.token.expires_us
    return CallerSchema(
        principal=caller.principal,
        token=caller.token.id,
        rights=[str(right) for right in Right if caller.may(right)],
        expires=None if expires_us is None else rfc3339(expires_us),
    )


@router.get("/v1/workers", response_model=WorkersSchema, tags=["service"], dependencies=[READER])
async def workers(request: Request) -> Response:
    """List the workers that are not gone, with what each holds, and the queues."""
    api = api_of(request)
    view = await list_workers(api.client.store.claims, api.client.store.sessions, api.metrics)
    return respond(WorkersSchema.of(view))


@router.get("/v1/usage", response_model=UsageSums, tags=["service"], dependencies=[READER])
async def usage(
    request: Request,
    by: Annotated[UsageBy, Query(description="What sums are made by.")] = UsageBy.DAY,
    days: Annotated[int, Query(ge=1, le=366, description="Runs made within so many days.")] = 7,
    session: InSession = "",
) -> Response:
    """Show what agents have used: requests, tokens, tool calls and cost."""
    client = api_of(request).client
    since_us = client.clock.now_us() - days * 86_400_000_000
    totals = await usage_totals(client.store.runs, by, since_us=since_us, session_id=session)
    unsummed = await client.store.runs.unsummed_usage(since_us=since_us, session_id=session)
    return respond(UsageSums.of(by, totals, unsummed))


@router.get(
    "/v1/metrics",
    tags=["service"],
    dependencies=[READER],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text form."}},
)
async def metrics(request: Request) -> Response:
    """Say what to watch, in Prometheus' text form; no names of sessions, tasks or people."""
    from soong.orchestrator.telemetry.metrics import CONTENT_TYPE, collect, text

    api = api_of(request)
    return Response(text(await collect(api.client.store, api.metrics, api.client.clock)), media_type=CONTENT_TYPE)
