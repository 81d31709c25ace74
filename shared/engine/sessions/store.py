"""The port for sessions, owners, responders, commands and workers.

Every adapter passes tests/contract. All methods are atomic: one transaction each. Times are the caller's
``now_us`` for the record only; whether somebody lives is judged by watching beat counters, never by comparing clocks.
"""

from collections.abc import Sequence
from typing import Protocol

from soong.shared.engine.sessions.session import (
    Command,
    Owner,
    Ownership,
    ProcessState,
    RefusalType,
    Responder,
    Session,
    Worker,
)


class SessionStore(Protocol):
    # -- owners
    async def register_owner(self, owner: Owner) -> None: ...

    async def beat_owner(self, owner_id: str) -> bool:
        """Add one to the owner's beat; False when it has been declared gone (it then stops owning)."""
        ...

    async def owners(self) -> Sequence[Owner]:
        """Return the owners that are not gone."""
        ...

    async def expire_owner(self, owner_id: str, beat: int) -> bool:
        """Declare an owner gone if its beat is still ``beat``; its sessions become free for adoption.

        One that was closed while a task or a command is open is opened again: its successor does the rest.

        False when it has beaten or is gone already.
        """
        ...

    async def release_owner(self, owner_id: str) -> None:
        """Say that the owner ends by its own will: gone, its sessions free (owner_id empty, epoch kept)."""
        ...

    # -- sessions
    async def open_session(self, session: Session) -> None:
        """Insert a session, owned or not."""
        ...

    async def session(self, session_id: str) -> Session:
        """Raises: NotFoundError."""
        ...

    async def session_page(
        self, *, include_closed: bool = False, before: str = "", limit: int = 100
    ) -> Sequence[Session]:
        """Return sessions, newest first; ``before`` is the id of the last one of the page before this one."""
        ...

    async def adopt_sessions(self, owner_id: str) -> Sequence[Session]:
        """Take every open session without an owner: set owner_id, epoch + 1. Two adopters never both get one.

        An owner that is gone gets none.
        """
        ...

    async def busy_sessions(self, owner_id: str) -> Sequence[str]:
        """Return the ids of the owner's sessions with a running or paused task or an open command.

        Its cost depends on open work alone, not on how many sessions there have been.
        """
        ...

    async def close_session(self, ownership: Ownership) -> None:
        """Raises: NotOwnerError."""
        ...

    # -- responders
    async def attach_responder(self, responder: Responder) -> None: ...

    async def beat_responder(self, responder_id: str) -> bool:
        """Add one to the beat; False when it is no longer attached."""
        ...

    async def detach_responder(self, responder_id: str) -> None: ...

    async def responders(self, session_id: str) -> Sequence[Responder]: ...

    # -- commands
    async def send_command(self, command: Command) -> None:
        """Insert a command; an existing one of that id is kept.

        In a closed session, a command about a task that has ended is inserted as ended, with its refusal
        (:mod:`soong.shared.engine.tasks.change`); a retry, and any other where nobody owns the session, opens it
        again for whichever owner adopts it.
        """
        ...

    async def take_commands(self, ownership: Ownership) -> Sequence[Command]:
        """Return the session's open commands in order of arrival. They stay open until ended."""
        ...

    async def end_command(
        self, command_id: str, *, refusal: str = "", refusal_type: RefusalType = RefusalType.CONFLICT
    ) -> None:
        """End a command; one that has ended keeps its end. Raises: NotFoundError."""
        ...

    async def command(self, command_id: str) -> tuple[Command, bool]:
        """Return a command and whether it has ended. Raises: NotFoundError."""
        ...

    # -- workers
    async def register_worker(self, worker: Worker) -> None: ...

    async def set_worker_state(self, worker_id: str, state: ProcessState) -> None:
        """Move live -> draining -> gone; a move back changes nothing.

        Raises: ConflictError for GONE while it holds leases: nobody would free them; hand them back first.
        """
        ...

    async def workers(self, *, include_gone: bool = False) -> Sequence[Worker]:
        """Return workers with ``busy`` counted from live leases."""
        ...


class HeartbeatWriter(Protocol):
    """The heartbeat of one worker incarnation, blocking: it runs on its own thread and its own connection."""

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        """Add one to the worker's beat; False when the incarnation has been declared gone.

        ``left_over`` names the completed steps whose threads still run, for people.

        Raises:
            UnavailableError: the database did not answer; the caller continues until its trust window ends.
        """
        ...

    def close(self) -> None: ...
