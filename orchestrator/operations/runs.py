"""Runs: who ran what, with which tools, and every event of it, page by page or live."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from soong.orchestrator.operations.context import Reader, Runner, Service, made_since_us
from soong.orchestrator.operations.documents import Page, page_of
from soong.orchestrator.operations.events import EventStream, line_frames, run_frames
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.orchestrator.operations.strict import (
    ArtifactDigest,
    Cursor,
    InSession,
    InTask,
    Limit,
    MadeWithin,
    RunId,
    StrictRoute,
    WithTag,
    WithTitle,
)
from soong.orchestrator.operations.tasks import CommandBody, steered
from soong.orchestrator.schemas.run import ArtifactPage, EventSchema, LineSchema, NodeSchema, RunDetail, RunSchema
from soong.shared.engine.runs.record import ListFilter, RunStatus
from soong.shared.engine.tasks.plan.plan import OWN_PREFIX

MAX_ARTIFACT_PAGE: Final = 1_000_000

router = APIRouter(route_class=StrictRoute, tags=["runs"])

After = Annotated[int, Query(ge=0, le=2**53, description="Begin after the entry of this number.")]
LastEventId = Annotated[str, Header(pattern=r"^([0-9]{1,16})?$", description="As `after`; readers send it.")]


class AbortBody(CommandBody):
    call: str = Field(default="", max_length=200, description="The id of a tool call that has to be under way.")
    goes_on: bool = Field(default=False, alias="continue", description="End this call alone: its agent continues.")


@router.get("/v1/runs")
async def list_runs(
    service: Service,
    _caller: Reader,
    session: InSession = "",
    task: InTask = "",
    status: Annotated[Sequence[RunStatus], Query(description="Only in one of these.")] = (),
    title: WithTitle = "",
    tag: WithTag = "",
    since: MadeWithin = "",
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Page[RunSchema]:
    """List runs, newest first."""
    store, only = service.store, ListFilter(tuple(status), title, made_since_us(service, since), tag)
    found = await store.runs.run_page(session_id=session, task_id=task, only=only, before=cursor, limit=limit)
    return page_of([RunSchema.of(run) for run in found], limit, found[-1].id if found else "")


@router.get("/v1/runs/{run_id}")
async def show_run(service: Service, _caller: Reader, run_id: RunId) -> RunDetail:
    """Show a run: lineage, usage, times, and every tool with the rule that gave or refused it."""
    run = await service.store.runs.run(run_id)
    is_own = run.identity.definition.startswith(OWN_PREFIX)  # whose tools are known by its runs alone
    return RunDetail.of(run).with_called(await service.store.runs.calls(run_id) if is_own else ())


@router.get("/v1/runs/{run_id}/nodes")
async def list_nodes(
    service: Service, _caller: Reader, run_id: RunId, after: After = 0, limit: Limit = 50
) -> Page[NodeSchema]:
    """Read a run's context tree: the input of the model, its output, and the results of tools."""
    store = service.store
    run = await store.runs.run(run_id)
    found = await store.runs.node_page(run_id, after=after, limit=limit)
    last = found[-1].number if found else run.last_node
    return _page([NodeSchema.of(one) for one in found], limit, last, run.last_node)


@router.get("/v1/runs/{run_id}/events")
async def list_events(
    service: Service, _caller: Reader, run_id: RunId, after: After = 0, limit: Limit = 50
) -> Page[EventSchema]:
    """Read a run's log as CloudEvents; `id` is the event's number, without gaps from 1 on."""
    store = service.store
    run = await store.runs.run(run_id)
    found = await store.runs.events(run_id, after_seq=after, limit=limit)
    events = [EventSchema.model_validate(event.envelope()) for event in found]
    return _page(events, limit, found[-1].seq if found else run.last_seq, run.last_seq)


@router.get("/v1/runs/{run_id}/logs")
async def list_lines(
    service: Service,
    _caller: Reader,
    run_id: RunId,
    after: After = 0,
    limit: Limit = 50,
    tail: Annotated[int, Query(ge=0, le=200, description="Only so many of the last lines; 0: all.")] = 0,
) -> Page[LineSchema]:
    """Read what the code of a run printed, logged and raised, line by line, without secrets.

    If a run writes very much, the first and the last lines are kept. A line of the stream `left_out` stands for those
    between, and the last line names the artifact that has all of them.
    """
    runs = service.store.runs
    await runs.run(run_id)
    if tail:
        after, limit = max(after, (await runs.last_line(run_id))[0] - tail), tail
    found = await runs.lines(run_id, after=after, limit=limit)
    return page_of([LineSchema.of(line) for line in found], limit, str(found[-1].number) if found else "")


@router.get(
    "/v1/runs/{run_id}/logs/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events `line`, then an event `end`."}},
)
async def stream_lines(
    service: Service, caller: Reader, run_id: RunId, after: After = 0, last_event_id: LastEventId = ""
) -> Response:
    """Follow the lines of a run: those after a number, then each within about two seconds, until the run has ended.

    Each line has its number as `id`; a reader that connects again sends the last one it saw as `Last-Event-ID` (or
    `after`).
    """
    await service.store.runs.run(run_id)
    seen = int(last_event_id) if last_event_id else after
    return EventStream(line_frames(service, run_id, seen), service, caller)


def _page(entries: Sequence[BaseModel], limit: int, last: int, last_of_run: int) -> Page[Any]:
    """Return a page of a run's log, which is shorter where its entries are large."""
    return page_of(entries, len(entries) if last < last_of_run else limit, str(last) if entries else "")


@router.get("/v1/artifacts/{digest}")
async def read_artifact(
    service: Service,
    _caller: Reader,
    digest: ArtifactDigest,
    offset: Annotated[int, Query(ge=0, le=2**53, description="Begin at this byte.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_ARTIFACT_PAGE, description="At most so many bytes.")] = 50_000,
) -> ArtifactPage:
    """Read a part of an artifact: output that was too long for a result, or the copy of a file that a run wrote.

    The bytes are checked against their digest at each read. The server needs the data folder of the workers.
    """
    async with service.artifact_reads:  # each may hold the largest artifact in memory
        data = await service.artifacts.get(digest)
        return ArtifactPage.page(digest, data, offset, limit)


@router.post("/v1/runs/{run_id}/abort")
async def abort_run(service: Service, caller: Runner, run_id: RunId, body: AbortBody) -> RunSchema:
    """End a run with its tool calls, as `aborted_tools`; with `continue` one call alone, whose end the agent reads."""
    store = service.store
    run = await store.runs.run(run_id)
    task, tasks = await steered(service, caller, run.identity.task_id)
    await tasks.abort(task, run.id, body.call, reason=body.reason, goes_on=body.goes_on)
    return RunSchema.of(await store.runs.run(run_id))


@router.get(
    "/v1/runs/{run_id}/stream",
    response_class=Response,
    responses={
        200: {
            "content": {"text/event-stream": {}},
            "description": "CloudEvents, events `delta` between them, then an event `end`.",
        },
        204: {"description": "The run has ended and the reader has seen all of its log: do not connect again."},
    },
)
async def stream_events(
    service: Service, caller: Reader, run_id: RunId, after: After = 0, last_event_id: LastEventId = ""
) -> Response:
    """Follow a run's log: stored events from a number on, then live ones, without gaps or duplicates.

    Each event has its number as `id`; a reader that connects again sends the last one it saw as `Last-Event-ID` (or
    `after`). A comment every 15 seconds keeps the connection. The end of the run is an event `end`.

    While a model answers, events `delta` without an `id` say what it has written so far: from position `at` on, `text`
    replaces what was there. They are not stored; the complete answer is a node of the run.
    """
    run = await service.store.runs.run(run_id)
    seen = int(last_event_id) if last_event_id else after
    if seen > run.last_seq:
        detail = f"the run's log has {run.last_seq} events; there is nothing after number {seen}"
        raise ProblemError(ProblemCode.INVALID_INPUT, detail)
    if run.status.is_terminal and seen == run.last_seq:
        return Response(status_code=204)
    return EventStream(run_frames(service, run_id, seen + 1), service, caller)
