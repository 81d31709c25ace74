"""Where this process comes from, or another of this machine: a person, or a run, which speaks for nobody (PER-13)."""

import asyncio
import socket
from collections.abc import Sequence

from soong.shared.core.errors import StartedByRunError
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.permissions.request import Provenance
from soong.shared.sandbox.family import RegisteredWorker, chain_of, own_chain


async def provenance_here(store: SessionStore | None) -> Provenance:
    """Return where this process comes from. Without a store only the kernel is asked.

    Raises:
        UnavailableError: the rows do not answer.
    """
    return Provenance(socket.gethostname(), await asyncio.to_thread(own_chain, await workers_here(store)))


async def workers_here(store: SessionStore | None) -> tuple[RegisteredWorker, ...]:
    """Return the worker processes of this machine by their rows. Raises: UnavailableError."""
    host = socket.gethostname()
    rows = await store.workers() if store is not None else ()
    return tuple(RegisteredWorker(row.pid, row.started_us) for row in rows if row.host == host)


def provenance_of(pid: int, workers: Sequence[RegisteredWorker]) -> Provenance:
    """Return where another process of this machine comes from; without processes when it has ended."""
    return Provenance(socket.gethostname(), chain_of(pid, workers))


async def check_person(store: SessionStore | None, what: str) -> Provenance:
    """Return where this process comes from; ``what`` is what it is about to do in a person's name.

    Raises:
        StartedByRunError: a run started it.
        UnavailableError: the rows do not answer.
    """
    provenance = await provenance_here(store)
    _refuse_run(provenance, what)
    return provenance


def check_person_now(what: str) -> None:
    """Like :func:`check_person`, by the kernel's word alone. Raises: StartedByRunError."""
    _refuse_run(Provenance(processes=own_chain()), what)


def is_run_here() -> bool:
    """Say whether a run started this process, by the kernel's word alone."""
    return Provenance(processes=own_chain()).run_process is not None


def _refuse_run(provenance: Provenance, what: str) -> None:
    if provenance.run_process is not None:
        raise StartedByRunError(what, provenance.run_process.pid, provenance.run_process.program)
