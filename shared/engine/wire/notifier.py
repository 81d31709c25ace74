"""The exchange between processes: notifications with the port that sends and awaits them, and capabilities of workers.

Adapters of the port: Redis, and an in-memory one. No process waits on a hint alone: a waiting process also reads the
rows after ``timeout_s``.

A capability is a word; so is a need of a step, and a claim compares the two (CARD-2). Those of an operator are labels,
plain words; ours have a kind before a colon. A step may be claimed by any worker that announces all it needs, so what
is needed is what a step really uses: each tool by its name, not a program's full catalogue, which a program of another
version does not have.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from msgspec import MsgspecError
from msgspec.json import decode

from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.value import Value

KEY_PREFIX: Final = "soong:"
"""Before every broker key, so that one Redis may serve others too (kombu ``global_keyprefix``)."""

OWNERS_CHANNEL: Final = f"{KEY_PREFIX}wake:owners"
"""To every orchestrator: ``{"v":1,"sessions":[…]}``: look at these; an empty list: there are slots to fill."""

REQUESTS: Final = f"{KEY_PREFIX}perm:req"
MAX_LENGTH: Final = 10_000

PROTOCOL: Final = 1
"""Version of everything under soong.shared.engine.wire and of a step's row; N reads N-1.

A step needs the version that it was written in, a worker announces those that it reads: as ``protocol:<n>``.
"""

DISPATCH_TASK: Final = "soong.worker"
"""The one Celery task: hold a slot and claim steps until nothing is claimable. Arguments: (dispatch_id,)."""

MAX_PIECE_CHARS: Final = 300_000
MAX_CALLS: Final = 100
MAX_NAME_CHARS: Final = 200
GAP: Final = "… "
"""Stands for what a reader has missed."""


class Notifier(Protocol):
    """Sends hints. A hint that cannot be sent is logged and counted, never an error: the sweep makes it good."""

    async def notify_owners(self, sessions: Sequence[str] = ()) -> None:
        """Ask owners to look at these sessions; none: there is work to dispatch or a new worker, fill slots."""

    async def notify_worker(self, worker_id: str) -> None:
        """Ask a worker to look at its interrupts."""

    async def call_worker(self, worker_id: str) -> None:
        """Ask a worker to claim steps for its free slots."""

    async def notify_session(self, session_id: str) -> None:
        """Notify those who follow a session that it changed."""

    async def notify_runs(self, run_ids: Sequence[str]) -> None:
        """Notify the followers of these runs that their logs have grown."""

    async def publish_answer(self, run_id: str, payload: str) -> int:
        """Send a piece of an answer at once and return its number of receivers; 0 also if it could not be sent."""

    async def permission_raised(self, request_id: str, session_id: str) -> None:
        """Tell owners that a question was raised, answered or withdrawn: its session's broker is to look."""

    async def permission_decided(self, request_id: str, worker_id: str) -> None:
        """Notify a worker that a request was closed."""


class Subscription(Protocol):
    """Receives hints on one subject; create it, then look at the rows, then wait: nothing falls in between."""

    async def wait(self, timeout_s: float) -> Sequence[str]:
        """Return the ids (sessions, requests) since the last call; empty after ``timeout_s`` without a hint."""

    async def close(self) -> None: ...


class LocalSubscription:
    """Reports the ids that are noted in this process: the newest ``keep`` of them since the last wait, 0: all."""

    def __init__(self, keep: int = 0) -> None:
        self._keep = keep
        self._ids: dict[str, None] = {}
        self._noted = asyncio.Event()

    def note(self, *ids: str) -> None:
        """Report these ids to the next wait. For the event loop that waits."""
        self._ids.update(dict.fromkeys(ids))
        while len(self._ids) > self._keep > 0:
            del self._ids[next(iter(self._ids))]
        self._noted.set()

    async def wait(self, timeout_s: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self._noted.wait()
        except TimeoutError:
            return ()
        ids = tuple(self._ids)
        self._ids.clear()
        self._noted.clear()
        return ids

    async def close(self) -> None:
        """Nothing to close."""


class Subscriber(Protocol):
    """Makes subscriptions. One that was away (its server restarted) reports its return: read all rows.

    It then reports an empty id, the subscriptions of a worker and of a session their own.
    """

    async def subscribe_owner(self) -> Subscription:
        """Subscribe to notifications of owners: session ids; an empty id means "fill slots"."""

    async def subscribe_permissions(self) -> Subscription:
        """Subscribe to the ids of sessions with questions to look at; none is lost while connected or shortly away."""

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        """Hear "look at your interrupts": the worker's id; and "fill your slots": an empty id."""

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        """Subscribe to the ids of one worker's decided requests."""

    async def subscribe_session(self, session_id: str) -> Subscription:
        """Subscribe to the changes of a session: its id for each."""

    async def subscribe_run(self, run_id: str) -> Subscription:
        """Hear that a run's log has grown: its id."""

    async def subscribe_answer(self, run_id: str) -> Subscription:
        """Hear a run's answers while they arrive: the pieces' payloads, the newest of them; an empty one after an
        outage.
        """


def worker_channel(worker_id: str) -> str:
    """Return the channel that has one worker read its interrupts (cancel, pause).

    With ``"claim": true`` in the payload it has the worker claim steps for its free slots instead.
    """
    return f"{KEY_PREFIX}wake:worker:{worker_id}"


def session_channel(session_id: str) -> str:
    """Return the channel for changes of a session (progress, a question, an end), to its clients."""
    return f"{KEY_PREFIX}wake:session:{session_id}"


def run_channel(run_id: str) -> str:
    """Return the channel that notifies followers of a run after each write to its log (EVT-02)."""
    return f"{KEY_PREFIX}wake:run:{run_id}"


def decisions_of(worker_id: str) -> str:
    """Return the stream of one worker's decided requests."""
    return f"{KEY_PREFIX}perm:dec:{worker_id}"


def reads(protocol: int = PROTOCOL) -> tuple[str, ...]:
    """Return the capabilities of a worker of this version: its own writing, and that of the version before."""
    return tuple(f"{PROTOCOLS}{version}" for version in range(max(1, protocol - 1), protocol + 1))


def queue_of(pool: str) -> str:
    """Return the Celery queue of a pool."""
    return f"soong.{pool}"


def queue_key(pool: str) -> str:
    """Return the Redis list in which kombu keeps that queue."""
    return f"{KEY_PREFIX}{queue_of(pool)}"


def answer_channel(run_id: str) -> str:
    """Return the channel with the answers of a run while they arrive."""
    return f"{KEY_PREFIX}wake:run:{run_id}:answer"


class AnswerDelta(Value):
    """A piece of an answer, without secrets. From its position ``at`` on, ``text`` replaces what was there.

    An answer that broke off and is asked for again starts at 0 again. ``calls`` are the tools that it calls so far.
    ``is_complete``: this is its last piece; the run continues with it.
    """

    turn: int
    at: int
    text: str
    calls: tuple[str, ...] = ()
    is_complete: bool = False

    def payload(self) -> str:
        """Return the form on the wire."""
        return json.dumps({"v": 1, **self.as_json()}, separators=(",", ":"))

    def applied_to(self, shown: str) -> str:
        """Return the answer's text so far for a reader who has shown this much of the same turn."""
        return (shown[: self.at] if self.at <= len(shown) else GAP) + self.text


def delta_of(payload: str) -> AnswerDelta | None:
    """Read the form on the wire; None when it is not one: anybody with a worker's rights may publish."""
    try:
        delta = decode(payload, type=AnswerDelta)
    except (MsgspecError, RecursionError):
        return None
    is_short = len(delta.text) <= MAX_PIECE_CHARS and len(delta.calls) <= MAX_CALLS
    is_bounded = is_short and all(len(name) <= MAX_NAME_CHARS for name in delta.calls)
    return delta if is_bounded and min(delta.turn, delta.at) >= 0 else None


PROTOCOLS: Final = "protocol:"
TOOL: Final = "tool:"
FUNCTION: Final = "function:"
APP: Final = "Celery app:"
PROJECT: Final = "project:"
HOST: Final = "host:"
VERSION: Final = "version:"
CATALOGUE: Final = "catalogue:"

ANNOUNCED: Final = (PROTOCOLS, TOOL, FUNCTION, APP, PROJECT, HOST, VERSION, CATALOGUE)
"""Kinds that every worker announces by itself; everything else is a label."""

COMPUTED: Final = (PROTOCOLS, TOOL, FUNCTION, APP, PROJECT)
"""Kinds that a step's need is computed of; a plan may name the others."""

BUILTIN: Final = "builtin."
"""Before the names of functions that every worker has."""


def tools_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities of a worker that has these tools.

    A tool of an MCP server needs the server: its tools change while workers run, and a missing one fails its call.
    """
    return tuple(dict.fromkeys(f"{TOOL}{_of_server(name) or name}" for name in names))


def _of_server(name: str) -> str:
    """Return ``mcp.<server>.*`` for a tool of an MCP server."""
    namespace, _, rest = name.partition(".")
    server, _, tool = rest.partition(".")
    return f"{namespace}.{server}.*" if namespace == "mcp" and tool else ""


def functions_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities of a worker that has these step functions."""
    return tuple(f"{FUNCTION}{name}" for name in names if name and not name.startswith(BUILTIN))


def app_needed(app: str) -> str:
    """Return the capability of a worker that imports the module of a Celery app; empty: the app of its setting."""
    return f"{APP}{app.partition(':')[0] or 'of SOONG_CELERY_APP'}"


def project_needed(id: str, path: str) -> tuple[str, ...]:
    """Return the capability of a worker that has this project at this path; none is needed of a folder without mark."""
    return (f"{PROJECT}{id}@{path}",) if id else ()


def projects_among(needs: Iterable[str]) -> tuple[str, ...]:
    """Return the projects among a step's needs."""
    return tuple(need for need in needs if need.startswith(PROJECT))


def catalogue_of(schemas: JsonObject) -> str:
    """Return the word for a full catalogue, tools with their schemas: the same in two workers that have the same."""
    return f"{CATALOGUE}{digest(schemas)[:16]}"


def declared(needs: Iterable[str]) -> tuple[str, ...]:
    """Return what a plan asked for among a step's needs."""
    return tuple(need for need in needs if not need.startswith(COMPUTED))


def announced(capabilities: Iterable[str], kind: str) -> str:
    """Return what a worker announces of a kind, such as its version; empty when it says nothing of it."""
    return next((name.removeprefix(kind) for name in capabilities if name.startswith(kind)), "")


def labels(capabilities: Iterable[str]) -> tuple[str, ...]:
    """Return what an operator gave a worker among its capabilities."""
    return tuple(name for name in capabilities if not name.startswith(ANNOUNCED))


def in_words(need: str) -> str:
    """Return a need in words for people."""
    kind, separator, name = need.partition(":")
    if not separator or f"{kind}:" not in ANNOUNCED:
        return f"the label {need!r}"
    if kind == "project":
        return f"the project at {name.partition('@')[2] or name}"
    return f"the {kind} {name}"
