"""Sessions and the processes around them: orchestrators that own, responders that answer, workers that work.

Owns the values, and the port of their rows. Every adapter passes tests/contract. All methods are atomic: one
transaction each. Times are the caller's ``now_us`` for the record only; whether somebody lives is judged by watching
beat counters, never by comparing clocks.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from soong.shared.core.identity import Origin
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value


class ApprovalMode(StrEnum):
    """How a session's questions are answered.

    ``prompt``: by responders that hold a lease (a terminal, an SDK callback). ``inbox``: by anyone with the right, at
    any time. ``deny``: by policy only; a call that would ask is denied.
    """

    PROMPT = "prompt"
    INBOX = "inbox"
    DENY = "deny"


class Ownership(Value):
    """The right of one orchestrator to write a session: stale as soon as the row's epoch is higher."""

    session_id: str
    owner_id: str
    epoch: int


class Session(Value):
    """One user's sitting. ``owner_id`` is empty until an orchestrator adopts it; ``owner_epoch`` only grows.

    ``project`` and ``cwd`` are absolute paths; ``policy`` is the JSON form of the session's rules
    (:mod:`soong.shared.permissions.policy`), in which ``--allow`` and configuration survive; grants are in no row.
    """

    id: str
    project: str
    cwd: str
    approval_mode: ApprovalMode
    created_us: int
    policy: Mapping[str, Json] = msgspec.field(default_factory=dict)
    principal: str = "local"
    owner_id: str = ""
    owner_epoch: int = 0
    is_closed: bool = False
    project_id: str = ""
    """By which workers prove that they have the project (:mod:`soong.shared.sandbox.rooted`); empty: any may
    try.
    """
    closes_with_task: bool = False
    """Whether the end of its last task closes it, if all of them completed: nobody has more to ask of it."""

    @property
    def ownership(self) -> Ownership:
        return Ownership(self.id, self.owner_id, self.owner_epoch)


class Responder(Value):
    """Someone who may fill the session's one callback, alive while ``beat`` grows (lease 15 s)."""

    id: str
    session_id: str
    principal: str
    channel: str
    beat: int = 0


class CommandKind(StrEnum):
    """The kind of a client's command to a session's owner; the owner alone writes the outcome."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    ABORT = "abort"
    """End a run with its tool calls, or one call alone (:mod:`soong.shared.engine.runs.store`)."""
    RETRY = "retry"
    """Run again what did not complete; with ``from`` in the detail also that step and all that came of it."""
    CLOSE = "close"
    UPDATE = "update"
    """Change a running task: grow it, try steps again, skip or cancel some
    (:mod:`soong.shared.engine.tasks.change`).
    """
    COMPLETE = "complete"
    FAIL = "fail"
    SPAWN = "spawn"
    """Insert a child of the run of an ask: a step of the ask (:mod:`soong.shared.toolsets.agents`)."""
    DISPATCH = "dispatch"
    """Insert pull workers: runs that take the steps of a task that are to be pulled
    (:mod:`soong.shared.engine.tasks.planner`).
    """


class RefusalType(StrEnum):
    """Which error a refused command is to its client."""

    CONFLICT = "conflict"
    LIMIT_EXCEEDED = "limit_exceeded"


class Command(Value):
    """A durable request of a client. ``subject`` is a task id (the session's id for close)."""

    id: str
    session_id: str
    kind: CommandKind
    subject: str
    principal: str
    created_us: int
    detail: Mapping[str, Json] = msgspec.field(default_factory=dict)
    refusal: str = ""
    """Why the owner did not carry it out; empty when it did or has not yet."""
    refusal_type: RefusalType = RefusalType.CONFLICT
    may_approve: bool = False
    """Whether the principal carries the right to approve, as the client that wrote it has checked."""

    def origin_in(self, session: Session) -> Origin:
        """Return whose the runs are that come of it: foreign unless that principal could answer for them."""
        is_own = self.principal == session.principal
        is_approver = self.may_approve and session.approval_mode is ApprovalMode.INBOX
        return Origin(self.principal, is_foreign=not (is_own or is_approver))


class ProcessState(StrEnum):
    """LIVE beats and takes work; DRAINING beats and finishes; GONE is final: one that returns is a new one."""

    LIVE = "live"
    DRAINING = "draining"
    GONE = "gone"


class Owner(Value):
    """One incarnation of an orchestrator process."""

    id: str
    host: str
    pid: int
    started_us: int
    state: ProcessState = ProcessState.LIVE
    beat: int = 0


class Worker(Value):
    """One incarnation of a Celery worker process. Leases belong to it, not to its steps one by one.

    ``node_name`` is its Celery host name (as Flower shows it); ``capabilities`` are the strings that a step's ``needs``
    are matched with (labels, ``project:<session marker>``, ``catalogue:<digest>``, ``protocol:<n>``). ``beat`` grows
    with each heartbeat; ``busy`` is the number of leases it holds, counted from rows. ``left_over`` names the completed
    steps whose threads still run there.
    """

    id: str
    node_name: str
    host: str
    pid: int
    slots: int
    pools: tuple[str, ...]
    capabilities: tuple[str, ...]
    started_us: int
    protocol: int
    state: ProcessState = ProcessState.LIVE
    beat: int = 0
    left_over: str = ""
    busy: int = 0


def idle_workers(workers: Sequence[Worker], pool: str) -> list[Worker]:
    """Return the live workers of ``pool`` that could run more steps now."""
    live = (one for one in workers if one.state is ProcessState.LIVE and pool in one.pools)
    return [one for one in live if one.busy < one.slots]


class SessionStore(Protocol):
    # -- owners
    async def register_owner(self, owner: Owner) -> None: ...

    async def beat_owner(self, owner_id: str) -> bool:
        """Add one to the owner's beat; False when it has been declared gone (it then stops owning)."""

    async def owners(self) -> Sequence[Owner]:
        """Return the owners that are not gone."""

    async def expire_owner(self, owner_id: str, beat: int) -> bool:
        """Declare an owner gone if its beat is still ``beat``; its sessions become free for adoption.

        One that was closed while a task or a command is open is opened again: its successor does the rest.

        False when it has beaten or is gone already.
        """

    async def release_owner(self, owner_id: str) -> None:
        """Say that the owner ends by its own will: gone, its sessions free (owner_id empty, epoch kept)."""

    # -- sessions
    async def open_session(self, session: Session) -> None:
        """Insert a session, owned or not."""

    async def session(self, session_id: str) -> Session:
        """Raises: NotFoundError."""

    async def session_page(
        self, *, include_closed: bool = False, before: str = "", limit: int = 100
    ) -> Sequence[Session]:
        """Return sessions, newest first; ``before`` is the id of the last one of the page before this one."""

    async def adopt_sessions(self, owner_id: str) -> Sequence[Session]:
        """Take every open session without an owner: set owner_id, epoch + 1. Two adopters never both get one.

        An owner that is gone gets none.
        """

    async def busy_sessions(self, owner_id: str) -> Sequence[str]:
        """Return the ids of the owner's sessions with a running or paused task or an open command.

        Its cost depends on open work alone, not on how many sessions there have been.
        """

    async def close_session(self, ownership: Ownership) -> None:
        """Raises: NotOwnerError."""

    # -- responders
    async def attach_responder(self, responder: Responder) -> None: ...

    async def beat_responder(self, responder_id: str) -> bool:
        """Add one to the beat; False when it is no longer attached."""

    async def detach_responder(self, responder_id: str) -> None: ...

    async def responders(self, session_id: str) -> Sequence[Responder]: ...

    # -- commands
    async def send_command(self, command: Command) -> None:
        """Insert a command; an existing one of that id is kept.

        In a closed session, a command about a task that has ended is inserted as ended, with its refusal
        (:mod:`soong.shared.engine.tasks.change`); a retry, and any other where nobody owns the session, opens it
        again for whichever owner adopts it.
        """

    async def take_commands(self, ownership: Ownership) -> Sequence[Command]:
        """Return the session's open commands in order of arrival. They stay open until ended."""

    async def end_command(
        self, command_id: str, *, refusal: str = "", refusal_type: RefusalType = RefusalType.CONFLICT
    ) -> None:
        """End a command; one that has ended keeps its end. Raises: NotFoundError."""

    async def command(self, command_id: str) -> tuple[Command, bool]:
        """Return a command and whether it has ended. Raises: NotFoundError."""

    # -- workers
    async def register_worker(self, worker: Worker) -> None: ...

    async def set_worker_state(self, worker_id: str, state: ProcessState) -> None:
        """Move live -> draining -> gone; a move back changes nothing.
        Raises: ConflictError for GONE while it holds leases: nobody would free them; hand them back first.
        """

    async def workers(self, *, include_gone: bool = False) -> Sequence[Worker]:
        """Return workers with ``busy`` counted from live leases."""


class HeartbeatWriter(Protocol):
    """The heartbeat of one worker incarnation, blocking: it runs on its own thread and its own connection."""

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        """Add one to the worker's beat; False when the incarnation has been declared gone.

        ``left_over`` names the completed steps whose threads still run, for people.

        Raises:
            UnavailableError: the database did not answer; the caller continues until its trust window ends.
        """

    def close(self) -> None: ...
