"""Runs, their logs and the ledger of their calls."""

from collections.abc import Sequence
from itertools import groupby, islice
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Select, select

from soong.shared.core.errors import AlreadyConsumedError, NotFoundError
from soong.shared.core.jsontext import Json
from soong.shared.core.log_lines import LogLine
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.lines import LineRow
from soong.shared.engine.runs.record import EVERYTHING, ListFilter, Run
from soong.shared.engine.runs.store import FAILED_CALLS, NAMING, Appended, CallRow, CallStatus, LastRuns, second_use
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.columns import ordinal_of
from soong.shared.storage.sql.engine.log_rows import events_of, nodes_of, page_of_log
from soong.shared.storage.sql.engine.row_mapper import unpack
from soong.shared.storage.sql.engine.rows import call_of, filtered, run_of
from soong.shared.storage.sql.engine.statements import Statement, table_read
from soong.shared.storage.sql.engine.tables.work import calls, nodes, runs, surfaces
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.log_lines import PLACES, put_lines, read_lines
from soong.shared.storage.sql.tasks.run_writes import (
    RunWrite,
    append_held,
    check_held,
    is_tainted,
    send_writes,
    write_runs,
)
from soong.shared.tools.surface import Surface

LAST_SURFACES: Final = Statement(
    "last surfaces: those of the last runs of a task's agents",
    """
    SELECT r.id, r.surface FROM steps AS s JOIN runs AS r ON r.id = s.run_id
    WHERE s.task_id = :task_id AND s.kind = 'agent' AND r.surface <> ''
    """,
)
SURFACE_BODIES: Final = Statement(
    "surface bodies: surfaces by digest", "SELECT digest, body FROM surfaces WHERE digest IN @digests"
)
_FAILED_TYPES: Final = ", ".join(f"'{type_}'" for type_ in FAILED_CALLS)
_TELLING: Final = ", ".join(f"'{type_}'" for type_ in NAMING)
_TOLD_BEFORE: Final = " OR ".join(f"e.preceding LIKE '%\"{word}\"%'" for word in ("deliverable", *FAILED_CALLS))
"""The condition on a row whose earlier events include one that belongs to the result.

The patterns are part of the text: SQLite prepares a statement again for each execution when one is a parameter.
"""
RESULT_EVENTS: Final = Statement(
    "result events: of the last runs of a task's steps the rows that hold what its result tells of, without decisions; "
    "which of their events do, their reader finds out",
    f"""
    SELECT e.run_id, e.seq, e.type, e.time_us, e.data, e.preceding, s.key AS step_key
    FROM steps AS s JOIN runs AS r ON r.id = s.run_id JOIN events AS e ON e.run_id = r.id AND e.seq <= r.last_seq
    WHERE s.task_id = :task_id
      AND (e.type IN ({_FAILED_TYPES}) OR (e.type IN ({_TELLING}) AND e.data LIKE '%"deliverable"%')
           OR (e.preceding <> '' AND ({_TOLD_BEFORE})))
    ORDER BY r.ordinal, e.seq
    """,  # noqa: S608  # our words
)

WHOLE_RUNS = select(runs, surfaces.c.body).outerjoin(surfaces, surfaces.c.digest == runs.c.surface)
"""Runs with all that :func:`soong.shared.storage.sql.engine.rows.run_of` reads."""


# Rows beyond their run's count were written outside the log, and are not read as part of it.
_COUNTED_NODES: Final = """
    WHERE run_id = :run_id AND number > :after AND number <= (SELECT last_node FROM runs WHERE id = :run_id)
    ORDER BY number
"""
NODES: Final = table_read("nodes: of a run, after one", nodes, _COUNTED_NODES)
NODE_PAGE: Final = table_read(
    "node page: so many of them", nodes, page_of_log("nodes", "number", "payload", "last_node")
)
EVENT_PAGE: Final = Statement(
    "event page: of a run's log, after one",
    f"""
    SELECT run_id, seq, type, time_us, data, preceding,
           (SELECT step_key FROM runs WHERE id = :run_id) AS step_key
    FROM events
    {page_of_log("events", "seq", "data", "last_seq")}
    """,  # noqa: S608  # our words
)
EVENTS_OF: Final = Statement(
    "events of: the logs of these runs, run by run",
    """
    SELECT e.run_id, e.seq, e.type, e.time_us, e.data, e.preceding, r.step_key
    FROM runs AS r JOIN events AS e ON e.run_id = r.id AND e.seq <= r.last_seq
    WHERE r.id IN @run_ids ORDER BY r.ordinal, e.seq
    """,
)
# Joined in this order: without statistics SQLite would begin with all runs.
ENDED_IN_OPEN_TASKS: Final = Statement(
    "ended in open tasks: runs of an owner's open tasks that ended in a span of time and used something or failed",
    """
    SELECT r.ended_us, r.id FROM tasks AS t CROSS JOIN sessions AS s CROSS JOIN runs AS r
    WHERE s.id = t.session_id AND r.task_id = t.id AND t.status IN ('running', 'paused')
      AND t.created_us < :before_us AND s.owner_id = :owner_id
      AND r.ended_us >= :after_us AND r.ended_us < :before_us
      AND (r.usage <> '{}' OR (r.started_us IS NOT NULL AND r.status <> 'completed'))
    """,
)
CALLS: Final = table_read(
    "calls: of a run, in the order in which they began", calls, "WHERE run_id = :run_id ORDER BY position"
)
CALL: Final = table_read("call: of a run", calls, "WHERE run_id = :run_id AND tool_call_id = :tool_call_id")

CONSUME: Final = Statement(
    "consume: a decision, once; no row means that it has been used, is of another call, or has expired",
    """
    INSERT INTO consumptions (decision_id, run_id, tool_call_id, consumed_us)
    SELECT :decision_id, :run_id, :tool_call_id, :now_us WHERE NOT EXISTS (
        SELECT 1 FROM decisions AS d JOIN permission_requests AS q ON q.id = d.request_id WHERE d.id = :decision_id
        AND (q.state <> 'decided' OR q.run_id <> :run_id OR q.tool_call_id <> :tool_call_id))
    ON CONFLICT DO NOTHING RETURNING decision_id
    """,
)


def _is_told(event: Event) -> bool:
    return event.type in FAILED_CALLS or (event.type in NAMING and "deliverable" in event.data)


def last_runs_of(tx: Transaction, task_id: str) -> LastRuns:
    """See :meth:`soong.shared.engine.runs.store.RunStore.last_runs`."""
    digests: dict[str, str] = dict(tx.rows(LAST_SURFACES, task_id=task_id))
    bodies = tx.rows(SURFACE_BODIES, digests=sorted(set(digests.values()))) if digests else ()
    # A step that is pulled has an empty surface: the run that claims it uses its own.
    tools = {digest: Surface.from_json(stored).tools for digest, body in bodies if (stored := unpack(body))}
    granted = {run_id: tools[digest] for run_id, digest in digests.items() if digest in tools}
    told = [event for event in events_of(tx.rows(RESULT_EVENTS, task_id=task_id)) if _is_told(event)]
    if failed := sorted({event.run_id for event in told if event.type in FAILED_CALLS}):
        # With what was decided in runs of which a call failed: every run has decisions, and few have such a call.
        logs: dict[str, list[Event]] = {event.run_id: [] for event in told}
        for event in told:
            logs[event.run_id].append(event)
        found = events_of(tx.rows(EVENTS_OF, run_ids=failed))
        for run_id, log in groupby(found, key=lambda event: event.run_id):
            logs[run_id] = [event for event in log if event.type == EventType.PERMISSION_DECIDED or _is_told(event)]
        told = [event for log in logs.values() for event in log]
    return LastRuns(granted, told)


class SqlRuns(StorePart):
    """The run part of the store."""

    async def run(self, run_id: str) -> Run:
        row = await self._database.read(lambda tx: tx.execute(WHOLE_RUNS.where(runs.c.id == run_id)).first())
        if row is None:
            raise NotFoundError("run", run_id)
        return run_of(row)

    async def list_runs(self, *, session_id: str = "", task_id: str = "", limit: int = 1000) -> Sequence[Run]:
        return await self._listed(WHOLE_RUNS.order_by(runs.c.ordinal).limit(limit), session_id, task_id)

    async def run_page(
        self,
        *,
        session_id: str = "",
        task_id: str = "",
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Run]:
        wanted = filtered(WHOLE_RUNS.order_by(runs.c.ordinal.desc()).limit(limit), runs, only)
        if before:
            wanted = wanted.where(runs.c.ordinal < ordinal_of(runs, before))
        return await self._listed(wanted, session_id, task_id)

    async def _listed(self, wanted: Select[Any], session_id: str, task_id: str) -> Sequence[Run]:
        if session_id:
            wanted = wanted.where(runs.c.session_id == session_id)
        if task_id:
            wanted = wanted.where(runs.c.task_id == task_id)
        return await self._database.read(lambda tx: [run_of(row) for row in tx.execute(wanted)])

    async def ended_in_open_tasks(
        self, owner_id: str, *, after: tuple[int, str], before_us: int, limit: int
    ) -> Sequence[Run]:
        def read(tx: Transaction) -> list[Run]:
            span = {"owner_id": owner_id, "after_us": after[0], "before_us": before_us}
            places = sorted(map(tuple, tx.rows(ENDED_IN_OPEN_TASKS, **span)))
            ids = [run_id for ended_us, run_id in places if (ended_us, run_id) > after][:limit]
            found = {row.id: run_of(row) for row in tx.execute(WHOLE_RUNS.where(runs.c.id.in_(ids)))} if ids else {}
            return [found[run_id] for run_id in ids]

        return await self._database.read(read)

    async def append(
        self,
        run_id: str,
        fence: int,
        *,
        nodes: Sequence[NewNode] = (),
        events: Sequence[NewEvent] = (),
        calls: Sequence[CallRow] = (),
        now_us: int,
        taints: bool = False,
    ) -> Appended:
        write = RunWrite(run_id, fence, now_us, nodes, events, calls, taints, reports=True)
        return await self._database.write_together(write_runs, write)

    async def nodes(self, run_id: str) -> Sequence[Node]:
        return await self._database.read(lambda tx: list(nodes_of(tx.rows(NODES, run_id=run_id, after=0))))

    async def node_page(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Node]:
        page = {"run_id": run_id, "after": after, "limit": limit}
        return await self._database.read(lambda tx: list(islice(nodes_of(tx.rows(NODE_PAGE, **page), after), limit)))

    async def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        page = {"run_id": run_id, "after": after_seq, "limit": limit}
        return await self._database.read(
            lambda tx: list(islice(events_of(tx.rows(EVENT_PAGE, **page), after_seq), limit))
        )

    async def events_of(self, run_ids: Sequence[str]) -> Sequence[Event]:
        ids = list(run_ids)
        return await self._database.read(lambda tx: list(events_of(tx.rows(EVENTS_OF, run_ids=ids))))

    async def last_runs(self, task_id: str) -> LastRuns:
        return await self._database.read(lambda tx: last_runs_of(tx, task_id))

    async def start_call(self, call: CallRow, fence: int, *, events: Sequence[NewEvent], now_us: int) -> None:
        write = RunWrite(call.run_id, fence, now_us, (), events, calls=(call,))
        if not call.decision_id:
            await self._database.write_together(write_runs, write)
            return
        try:
            await self._database.write_together(start_permitted, write)
        except AlreadyConsumedError:
            await self.append(call.run_id, fence, events=[second_use(call, now_us)], now_us=now_us)
            raise

    async def end_call(
        self,
        run_id: str,
        fence: int,
        tool_call_id: str,
        *,
        result: Json,
        nodes: Sequence[NewNode],
        events: Sequence[NewEvent],
        now_us: int,
        taints: bool = False,
        call: CallRow | None = None,
    ) -> None:
        def ended(row: CallRow) -> CallRow:
            if row.status is CallStatus.ENDED and row.result is result and row.open_input is None:
                return row
            return replace(row, status=CallStatus.ENDED, result=result, open_input=None)

        def write_end(tx: Transaction) -> None:
            rows = tuple(ended(call_of(row)) for row in tx.rows(CALL, run_id=run_id, tool_call_id=tool_call_id))
            write = RunWrite(run_id, fence, now_us, nodes, events, rows, taints)
            append_held(tx, write)

        if call is None:
            await self._database.write(write_end)
            return
        write = RunWrite(run_id, fence, now_us, nodes, events, (ended(call),), taints)
        await self._database.write_together(write_runs, write)

    async def is_tainted(self, run_id: str) -> bool:
        return await self._database.read(lambda tx: is_tainted(tx, run_id))

    async def calls(self, run_id: str) -> Sequence[CallRow]:
        return await self._database.read(lambda tx: [call_of(row) for row in tx.rows(CALLS, run_id=run_id)])

    async def write_lines(self, rows: Sequence[LineRow]) -> None:
        await self._database.write_together(put_lines, rows)

    async def last_line(self, run_id: str) -> tuple[int, int]:
        rows = await self._database.read(lambda tx: tx.rows(PLACES, run_id=run_id))
        return max(((row.number, row.place) for row in rows), default=(0, -1))

    async def lines(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[LogLine]:
        return (await self._database.read(lambda tx: read_lines(tx, run_id, after)))[:limit]


def start_permitted(tx: Transaction, starts: Sequence[RunWrite]) -> list[None]:
    """Start calls, each the only one of its write and by its own decision.

    Raises:
        LeaseLostError, AlreadyConsumedError: one of them failed; all is to be undone.
    """
    with tx.pipeline():
        outcomes, consumed = send_writes(tx, starts), []
        for start in starts:
            (call,) = start.calls
            names = {"run_id": call.run_id, "tool_call_id": call.tool_call_id, "decision_id": call.decision_id}
            consumed.append((call.decision_id, tx.send(CONSUME, now_us=start.now_us, **names)))
    check_held(outcomes())
    for decision_id, reply in consumed:
        if not reply():
            raise AlreadyConsumedError(decision_id)
    return [None] * len(starts)
