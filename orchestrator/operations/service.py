"""The service itself: is it there, what does it hold, who am I; signing in, the audit log, ids as people type them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Administrator, Reader, Service, made_since_us
from soong.orchestrator.operations.documents import AuditEntrySchema, CallerSchema, FoundId, HealthSchema, Page, page_of
from soong.orchestrator.operations.problems import raised_as_ours
from soong.orchestrator.operations.strict import Body, InSession, Limit, StrictRoute
from soong.orchestrator.schemas.tool import ToolsSchema
from soong.orchestrator.schemas.worker import StatusSchema, UsageSums, WorkersSchema
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.timing import rfc3339
from soong.shared.engine.runs.record import UsageBy, UsageTotal
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.tasks.claims import limit_scope
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.storage.store import Store

router = APIRouter(route_class=StrictRoute, tags=["service"])

ALL: Final = "all"

Since = Annotated[str, Query(max_length=10, description="Only of this time up to now, such as `12h` or `30d`.")]
AfterOrdinal = Annotated[int, Query(ge=0, le=2**53, description="`next` of the page before.")]
Kinds = Annotated[Sequence[AuditKind], Query(description="Only entries of these kinds.")]


@router.get("/v1/health")
async def health() -> HealthSchema:
    """Report that this process answers, without a query. Needs no token."""
    return HealthSchema(status="ok")


@router.get("/v1/ready")
async def ready(service: Service) -> HealthSchema:
    """Say whether the database answers: 200 or 503. Needs no token."""
    await service.look_at_rows()
    return HealthSchema(status="ok")


@router.get("/v1/me")
async def me(caller: Reader) -> CallerSchema:
    """Say who the token speaks for, and what it may do."""
    return caller_document(caller)


def caller_document(caller: Caller) -> CallerSchema:
    expires_us = caller.token.expires_us
    return CallerSchema(
        principal=caller.principal,
        token=caller.token.id,
        rights=[str(right) for right in Right if caller.may(right)],
        expires=None if expires_us is None else rfc3339(expires_us),
    )


@router.get("/v1/workers")
async def workers(service: Service, _caller: Reader) -> WorkersSchema:
    """List the workers that are not gone, with what each holds, and the queues."""
    return await WorkersSchema.read(service.store.claims, service.store.sessions, service.metrics)


@router.get("/v1/status")
async def show_status(service: Service, _caller: Reader) -> StatusSchema:
    """Show the deployment in a few numbers: workers, steps, questions, open tasks."""
    return await StatusSchema.read(service.store, service.metrics)


@router.get("/v1/usage")
async def usage(
    service: Service,
    _caller: Reader,
    by: Annotated[UsageBy, Query(description="What sums are made by.")] = UsageBy.DAY,
    days: Annotated[int, Query(ge=1, le=366, description="Runs made within so many days.")] = 7,
    session: InSession = "",
    since: Annotated[str, Query(max_length=10, description="Instead of `days`: `12h`, `30d` or `all`.")] = "",
) -> UsageSums:
    """Show what agents have used: requests, tokens, tool calls and cost."""
    client = service.client
    since_us = 0 if since == ALL else made_since_us(service, since or f"{days}d")
    totals = await usage_totals(client.store.runs, by, since_us=since_us, session_id=session)
    unsummed = await client.store.runs.unsummed_usage(since_us=since_us, session_id=session)
    return UsageSums.of_totals(by, totals, unsummed)


@router.get("/v1/tools")
async def list_tools(
    service: Service,
    _caller: Reader,
    role: Annotated[Role | None, Query(description="Only the tools that this role gets.")] = None,
) -> ToolsSchema:
    """List the tools of the service, in the order that models see them."""
    return await asyncio.to_thread(ToolsSchema.of_home, service.client.settings, role)


@router.get(
    "/v1/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text form."}},
)
async def metrics(service: Service, _caller: Reader) -> Response:
    """Say what to watch, in Prometheus' text form; no names of sessions, tasks or people."""
    from soong.orchestrator.telemetry.metrics import CONTENT_TYPE, collect, text

    return Response(text(await collect(service.store, service.metrics, service.client.clock)), media_type=CONTENT_TYPE)


class ScopeBody(Body):
    scope: str = Field(max_length=300, description="`pool:NAME`, `model:NAME`, `definition:NAME` or `session:ID`.")


class SignInBody(Body):
    code: str = Field(max_length=200, description="What `soong console` put behind the `#` of the address.")
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256, in hexadecimal, of a secret of the caller's: 32 random bytes as base64url.",
    )


@router.post("/v1/sign-in")
async def sign_in(request: Request, service: Service, body: SignInBody) -> CallerSchema:
    """Turn a code into a token, once. Needs no token.

    The token's text is `soong_`, the `token` of the answer, `_`, and the secret, which is never sent here. The code is
    worth nothing afterwards, and after a minute.
    """
    address = request.client.host if request.client is not None else ""
    caller = await service.authenticator.sign_in(body.code, body.digest, address)
    return caller_document(caller)


@router.get("/v1/audit")
async def list_audit(
    service: Service,
    _caller: Reader,
    session: InSession = "",
    kind: Kinds = (),
    since: Since = "400d",
    after: AfterOrdinal = 0,
    limit: Limit = 50,
) -> Page[AuditEntrySchema]:
    """List who answered, decided and granted what, oldest first; `soong audit verify` checks the entries."""
    since_us = made_since_us(service, since)
    found = await service.store.audit.audit_entries(
        after=after, session_id=session, kinds=kind, since_us=since_us, limit=limit
    )
    last = str(found[-1].ordinal) if found else ""
    return page_of([AuditEntrySchema.of(entry) for entry in found], limit, last)


@router.post("/v1/limits/pause")
async def pause_limit(service: Service, _caller: Administrator, body: ScopeBody) -> WorkersSchema:
    """Let nothing of a pool, a model, a definition or a session start; what runs continues."""
    scope = _scope(body)
    if scope.startswith("session:"):
        await service.store.sessions.session(scope.removeprefix("session:"))
    await service.store.claims.pause_scope(scope, is_paused=True)
    return await workers(service, _caller)


@router.post("/v1/limits/resume")
async def resume_limit(service: Service, _caller: Administrator, body: ScopeBody) -> WorkersSchema:
    """Let what was paused start again, within its limit."""
    await service.store.claims.pause_scope(_scope(body), is_paused=False)
    return await workers(service, _caller)


def _scope(body: ScopeBody) -> str:
    with raised_as_ours():
        return limit_scope(body.scope)


async def usage_totals(runs: RunStore, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
    """Return the sums over the agents' runs that were made since then, the largest cost first, then most tokens."""
    totals = await runs.usage_totals(by, since_us=since_us, session_id=session_id)
    if by is UsageBy.DAY:
        return sorted(totals, key=lambda one: one.key, reverse=True)
    return sorted(totals, key=lambda one: (one.cost_usd, one.input_tokens + one.output_tokens), reverse=True)


MANY: Final = 1000
Kind: TypeAlias = Literal["task", "run", "session", "approval"]
LISTS: Final[Mapping[str, str]] = {
    "task": "soong tasks list",
    "run": "soong runs list",
    "session": "soong tasks list --json",
    "permission request": "soong approvals list",
    "key": "soong keys list",
}
"""The commands that list ids."""


@router.get("/v1/ids/{kind}")
async def find_id(
    service: Service,
    _caller: Reader,
    kind: Kind,
    text: Annotated[str, Query(max_length=400, description="Enough of its beginning or end to be the only one.")],
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
    return bool(text) and (key.startswith(text) or body.startswith(text) or key.endswith(text))
