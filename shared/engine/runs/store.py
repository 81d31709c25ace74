"""The port for runs, their nodes and events, and the record of their calls.

Appending is fenced and gapless at once: the run row's counters grow in the same transaction as the insert, under the
fence; no row matched means LeaseLostError and nothing is written.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from soong.shared.core.errors import NotFoundError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log_lines import LogLine
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.lines import LineRow
from soong.shared.engine.runs.record import EVERYTHING, ListFilter, Run, UnsummedUsage, UsageBy, UsageTotal

_ENDED: Final = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED})


class Appended(Value):
    """The numbers of the last event and node after an append."""

    last_seq: int
    last_node: int


class CallStatus(StrEnum):
    """STARTED without an end after a crash means: reads may be run again, writes are ``unknown_after_crash``."""

    STARTED = "started"
    ENDED = "ended"


class CallRow(Value):
    """The ledger entry of a write call (DAG-09) and, once it has ended, of any call (PER-19).

    ``inputs`` keeps model_input, hook_input, permission_input and call_input apart (EXE-02), already redacted;
    ``input_digest`` is of the real one. ``facts`` holds the facts of the permission check as ``facts`` and its outcome
    as ``decision``. ``decision_id`` is consumed in the same transaction when not empty.

    ``open_input`` is what the model sent, in full, of a call that has not ended and whose input holds a secret, wrapped
    as ``{"arguments": …}``: the nodes hold it redacted, and a call that is run again after a crash needs it as it was.
    It is in no log and listing, and gone when the call starts as a write or ends (EVT-05).
    """

    UNSHOWN = frozenset({"open_input"})

    run_id: str
    tool_call_id: str
    tool: str
    effect_id: str
    is_write: bool
    input_digest: str
    inputs: JsonObject
    facts: JsonObject
    decision_id: str = ""
    status: CallStatus = CallStatus.STARTED
    result: Json = None
    open_input: JsonObject | None = None


FAILED_CALLS: Final = (EventType.TOOL_DENIED, EventType.TOOL_FAILED)
"""The events of a run in a task's result, in addition to those that name a deliverable. The result of a run that has
one of these also contains its decisions: how its calls came to fail.
"""


NAMING: Final = (EventType.TOOL_COMPLETED, EventType.ARTIFACT_STORED)
"""The events that can name a deliverable."""


class LastRuns(Value):
    """The part of a task's result about the last runs of its steps.

    ``granted`` are the tools of agents by run id. ``events`` are those of FAILED_CALLS, the decisions of the runs that
    have one of these, and the events that name a deliverable, run by run in order of creation.
    """

    granted: Mapping[str, Sequence[str]]
    events: Sequence[Event]


def second_use(call: CallRow, now_us: int) -> NewEvent:
    """Return the event of a call that would have used a decision again (PER-12)."""
    used: dict[str, Json] = {"decision_id": call.decision_id, "tool_call_id": call.tool_call_id, "tool": call.tool}
    return NewEvent(EventType.SECURITY, {"what": "second_use", **used}, now_us)


class RunStore(Protocol):
    async def run(self, run_id: str) -> Run:
        """Raises: NotFoundError."""

    async def list_runs(self, *, session_id: str = "", task_id: str = "", limit: int = 1000) -> Sequence[Run]:
        """Return runs in order of creation."""

    async def ended_in_open_tasks(
        self, owner_id: str, *, after: tuple[int, str], before_us: int, limit: int
    ) -> Sequence[Run]:
        """Return runs that ended before ``before_us`` in tasks of an owner's sessions that have not ended.

        In the order of their ends, then ids, from behind ``after``, such a pair. Those that used nothing and ended well
        are left out.
        """

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
        """Append to a running run under its fence, all or nothing. ``calls`` are rows of calls that are yet to be made.
        Raises: LeaseLostError, the fence is stale or the run is not running.
        """

    async def nodes(self, run_id: str) -> Sequence[Node]: ...

    async def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]: ...

    async def events_of(self, run_ids: Sequence[str]) -> Sequence[Event]:
        """Return all events of these runs, each run's in order, in one read."""

    async def last_runs(self, task_id: str) -> LastRuns:
        """Return the part of a task's result about its runs, in one read however many there are."""

    async def start_call(self, call: CallRow, fence: int, *, events: Sequence[NewEvent], now_us: int) -> None:
        """Write the ledger row, consume the decision and append events in one transaction.

        A decision that has been used, has expired or is of another call starts nothing; a security event in the run's
        log names the process that tried.
        Raises: LeaseLostError, AlreadyConsumedError.
        """

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
        """End the ledger row, and append the result node and events, in one transaction.

        ``call`` is the row as it is at the end and replaces what was there; None ends the one there is, if any.

        ``taints``: the call has read what strangers wrote. The run is marked, and nothing takes that back (PER-21).
        Raises: LeaseLostError.
        """

    async def is_tainted(self, run_id: str) -> bool:
        """Say whether the run has read untrusted content: itself, through the steps whose results it was given, and
        so on, or through the runs that it started (PER-21). A step that is a function counts as having read some.
        Raises: NotFoundError.
        """

    async def calls(self, run_id: str) -> Sequence[CallRow]: ...

    # -- lines
    async def write_lines(self, rows: Sequence[LineRow]) -> None:
        """Write rows of lines, each in place of what its place held. Those of a run that is not held are dropped."""

    async def last_line(self, run_id: str) -> tuple[int, int]:
        """Return the number of the last line of a run, and the place of its row; (0, -1) without a line."""

    async def lines(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[LogLine]:
        """Return the lines whose number is above ``after``, in order."""

    # -- page by page
    async def run_page(
        self,
        *,
        session_id: str = "",
        task_id: str = "",
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Run]:
        """Return runs, newest first; ``before`` is the id of the last one of the page before this one."""

    async def usage_totals(self, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
        """Return the sums over the runs of agents that were made since then, in no order.

        A run whose usage is malformed counts for nothing. Each model of a run that fell back has its own part.
        """

    async def unsummed_usage(self, *, since_us: int = 0, session_id: str = "") -> UnsummedUsage:
        """Return what the sums over the runs that were made since then leave out."""

    async def node_page(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Node]:
        """Return the nodes whose number is above ``after``, in order."""


class CallAbort(Value):
    """A person wants this to end. It stays for as long as its run: a run that is taken up again finds it."""

    run_id: str
    tool_call_id: str = ""
    """The call that ends alone. Empty: the run ends, and with it all its calls."""
    reason: str = ""


async def ancestors_of(runs: RunStore, identity: RunIdentity, most: int) -> list[RunIdentity]:
    """Return the runs above a run, the nearest first, as far as there are rows of them. Raises: UnavailableError."""
    found: list[RunIdentity] = []
    while identity.parent_run_id and len(found) < most:
        try:
            identity = (await runs.run(identity.parent_run_id)).identity
        except NotFoundError:
            break
        found.append(identity)
    return found


async def log_of(runs: RunStore, run_id: str) -> AsyncIterator[Event]:
    """Yield the log of a run from its beginning. Raises: UnavailableError."""
    seen = 0
    while page := await runs.events(run_id, after_seq=seen):
        for event in page:
            yield event
        seen = page[-1].seq


async def calls_under_way(runs: RunStore, run_id: str) -> dict[str, str]:
    """Return the tools of a run's calls that have begun and not ended, by tool call id, as its log has it."""
    found: dict[str, str] = {}
    async for event in log_of(runs, run_id):
        call_id = str(event.data.get("tool_call_id", ""))
        if event.type == EventType.TOOL_QUEUED:
            queued = event.data.get("tools")
            found |= {each: str(tool) for each, tool in queued.items()} if isinstance(queued, dict) else {}
        elif event.type == EventType.TOOL_STARTED:
            found[call_id] = str(event.data.get("tool", ""))
        elif event.type in _ENDED:
            found.pop(call_id, None)
    return found
