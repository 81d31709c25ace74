"""What the workers' shared database role may do to the other processes that have it (deploy/postgres-roles.sql)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.servers import PostgresServer, postgres_programs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(postgres_session_server: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """A database after the script; the URL is that of a worker."""
    for part in ("owner", "orchestrator", "worker", "client"):
        (tmp_path / f"postgres_password_{part}").write_text(f"a-password-of-{part}")
    with postgres_session_server.fresh_database("soong_shared_role") as admin:
        plain = make_url(admin).set(drivername="postgresql").render_as_string(hide_password=False)
        script = ("--set", f"secrets={tmp_path}", "--file", str(ROOT / "deploy" / "postgres-roles.sql"))
        for _ in range(2):
            subprocess.run(
                [postgres_programs(tmp_path, readable_by_all=False) / "psql", plain, *script], check=True, timeout=60
            )
        yield plain.replace("//postgres@", "//soong_worker@")


@pytest.mark.spec("PER-12", "OPS-12")
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_terminate_backend(%(other)s)",
        "SELECT pg_cancel_backend(%(other)s)",
        "SELECT lo_create(0)",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
    ],
)
def test_a_worker_ends_no_connection_of_another_and_hides_no_large_object(url: str, statement: str) -> None:
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as bad:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bad.execute(statement.encode(), {"other": other.info.backend_pid})

        assert other.execute("SELECT 1").fetchone() == (1,)
