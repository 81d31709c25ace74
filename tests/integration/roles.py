"""A PostgreSQL database with the roles of a deployment, and a store that works as two of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg
from sqlalchemy import make_url

from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.roles.role_grants import Roles, grant
from soong.shared.storage.sql.store import SqlStore
from soong.shared.storage.store import Store
from tests.contract.databases import migrate

OWNER: Final = "soong_owner"
ORCHESTRATOR: Final = "soong_orchestrator"
WORKER: Final = "soong_worker"
CREDENTIAL: Final = "known-to-one-process-of-workers-alone"
"""By which the stores of one worker's process are told from those of others."""

WORKER_METHODS: Final = frozenset(
    {
        *(
            "advance",
            "release",
            "claim_additional",
            "report_progress",
            "interrupts",
            "register_worker",
            "set_worker_state",
            "workers",
        ),
        *(
            "append",
            "write_lines",
            "last_line",
            "start_call",
            "end_call",
            "calls",
            "nodes",
            "run",
            "is_tainted",
            "raise_request",
            "withdraw",
        ),
        "withdraw_cut_off",
        *("park", "expire_decision"),
        *("settled", "task", "step", "steps", "counts", "result", "leases", "reserve", "settle", "task_time"),
    }
)
"""What a worker's process calls of its store; everything else is the business of clients and owners."""
PARTS: Final = frozenset({"sessions", "tasks", "claims", "runs", "budgets", "consent", "keys", "access", "audit"})
"""The parts of the store."""


@dataclass(frozen=True, slots=True)
class RoleUrls:
    """One database by the URLs of its roles; ``admin`` is the server's superuser."""

    admin: str
    owner: str
    orchestrator: str
    worker: str


class _SplitPart:
    def __init__(self, worker: object, others: object) -> None:
        self._worker = worker
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker if name in WORKER_METHODS else self._others, name)


class SplitStore:
    """One deployment's store: a worker's methods under its role, all others under the orchestrator's."""

    def __init__(self, worker: SqlStore, others: SqlStore) -> None:
        self._worker = worker
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return _SplitPart(getattr(self._worker, name), getattr(self._others, name))

    def heartbeat_writer(self) -> HeartbeatWriter:
        return self._worker.heartbeat_writer()

    async def close(self) -> None:
        await self._worker.close()
        await self._others.close()

    def as_store(self) -> Store:
        return cast(Store, self)


def with_roles(url: str) -> RoleUrls:
    """Make the roles, hand the empty database to their owner, migrate it as that role and give the rights."""
    with _connected(url) as connection:
        for role in (OWNER, ORCHESTRATOR, WORKER):
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
                connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        name = make_url(url).database
        connection.execute(f'ALTER DATABASE "{name}" OWNER TO {OWNER}'.encode())
    urls = RoleUrls(url, *(url.replace("//postgres@", f"//{role}@") for role in (OWNER, ORCHESTRATOR, WORKER)))
    migrate(urls.owner)
    grant(parse_url(urls.owner), Roles(worker=WORKER, orchestrator=ORCHESTRATOR))
    return urls


@contextmanager
def _connected(url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        yield connection


def plain(url: str) -> str:
    """Return a URL as psycopg itself takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
