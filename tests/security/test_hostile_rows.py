"""Hostile rows, and what a role of the database may do."""

import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import make_url

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.storage.sql.engine.tables import metadata
from tests.contract.scene import completed
from tests.integration.bad_deployment import Deployment, claim_one
from tests.integration.conftest import deployment, role_urls
from tests.integration.roles import WORKER, RoleUrls, plain
from tests.model.builders import make_step, make_task, open_worker
from tests.security.row_readers import read_everything, read_runs, read_tasks
from tests.servers import PostgresServer, postgres_programs

__all__ = ["deployment", "role_urls"]

SEED: Final = 20261122
MADE: Final = 8
"""Documents that are made by chance, besides those that are written out."""
AT_ONCE: Final = 3
"""Values that stand beside each other, each in rows of its own, when everybody looks."""
SHOWN: Final = 3 * AT_ONCE
"""Runs and tasks that are read whole each time."""

TEXTS: Final = (
    "", "not json", "{", "null", "true", "5", '"x"', "[]", "{}", '["x", 5]', "[" * 150 + "]" * 150,
    '{"a":' * 300 + "1" + "}" * 300, "[" * 5000 + "]" * 5000, '{"a": 1e999}', '{"a": 123456789012345678901234567890}',
    '{"a": ' + "9" * 5000 + "}", '{"a": "\\ud800"}', '{"a": "\\u0000"}', '{"a": NaN}', '{"a": 1, "a": 2}',
    '{"v": 1, "message": 5}', '{"by_model": 5}', '{"by_model": {"a": "x"}}',
    '{"by_model": {"a": {"requests": -1, "cost_usd": "9e999"}}}', '{"v": 1, "message": {"parts": 5}}',
    '{"v": 1, "message": {"parts": [{"part_kind": "text", "content": {}}]}}',
    '{"v": 1, "denials": 5, "unknown_effects": {"a": 1}, "output": []}',
    '{"what": [], "tool": {}, "tool_call_id": {"a": 1}, "deliverable": {"name": 5}, "error": [], "message": {}}',
    '{"deliverable": {"name": "../../x", "path": [], "digest": "x"}}', '{"requests": "many", "cost_usd": "NaN"}',
    '{"requests": 1e308, "tool_calls": -1}', '{"cost_usd": "1E+999999"}',
    '{"type": [], "message": {}, "retryable": "yes"}', '{"open_input": 5}', "\x1b]52;c;cm0gLXJm\x07\u202e",
    "x" * 1_100_000, '{"a": "' + "x" * 1_100_000 + '"}', "completed", "gone", "wrk_none",
)  # fmt: skip
NUMBERS: Final = (-(2**63), -1, 0, 1, 2, 2**31, 2**53, 2**53 + 1, 253_402_300_800_000_000, 2**63 - 1)

NEXT: Final = "(SELECT coalesce(max({0}), 0) + 1 FROM {1} WHERE run_id = %(own)s)"
NEXT_EVENT: Final = (
    "(SELECT greatest(last_seq, (SELECT max(seq) FROM events WHERE run_id = %(own)s)) + 1 FROM runs WHERE id = %(own)s)"
)
UNIQUE: Final = "'x' || gen_random_uuid()"
OWN: Final = "%(own)s"
INSERTS: Final[Mapping[str, Mapping[str, str]]] = {
    "workers": {
        "id": UNIQUE, "node_name": "'n'", "host": "'h'", "pid": "1", "slots": "1", "pools": "'[\"default\"]'",
        "capabilities": "'[]'", "started_us": "1", "protocol": "1", "state": "'live'", "left_over": "''", "beat": "1",
        "credential": "(SELECT credential FROM workers WHERE id = %(own_worker)s)",
    },
    "charges": {
        "run_id": OWN, "fence": "(SELECT fence FROM runs WHERE id = %(own)s)",
        "number": NEXT.format("number", "charges"), "session_id": "%(session)s",
        "day": "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')", "tokens": "1", "microusd": "1", "is_open": "1",
        "turns": "1",
    },
    "events": {
        "run_id": OWN, "seq": NEXT_EVENT, "type": "'tool_completed'", "time_us": "1", "data": "'{}'",
        "preceding": "''",
    },
    "nodes": {
        "run_id": OWN, "number": NEXT.format("number", "nodes"), "parent": "0", "kind": "'result'",
        "payload": "'{\"v\": 1}'", "preceding": "''", "created_us": "1",
    },
    "calls": {
        "run_id": OWN, "tool_call_id": UNIQUE, "position": "0", "tool": "'t'", "effect_id": "'e'", "is_write": "1",
        "input_digest": "''", "inputs": "'{}'", "facts": "'{}'", "decision_id": "''", "status": "'started'",
        "result": "NULL",
    },
    "log_lines": {
        "run_id": OWN, "place": NEXT.format("place", "log_lines"), "number": NEXT.format("number", "log_lines"),
        "lines": """'[[1,"stdout","","a"]]'""",
    },
    "permission_requests": {
        "id": UNIQUE, "run_id": OWN, "session_id": "%(session)s", "tool_call_id": UNIQUE, "created_us": "1",
        "body": "'{}'",
    },
    "consumptions": {"decision_id": UNIQUE, "run_id": OWN, "tool_call_id": "'c'", "consumed_us": "1"},
    "reports": {"run_id": OWN, "type": "'security'", "data": "'{}'", "time_us": "1"},
}  # fmt: skip
"""A row of each table as a worker may insert it, column by column: one of them at a time is exchanged."""
UPDATES: Final[Mapping[str, str]] = {
    "sessions": "true",
    "concurrency_limits": "true",
    "budgets": "true",
    "charges": "run_id = %(own)s",
    "steps": "key = %(own_step)s",
    "runs": "id = %(own)s",
    "workers": "id = %(own_worker)s",
    "calls": "run_id = %(own)s",
    "log_lines": "run_id = %(own)s",
    "permission_requests": "run_id = %(own)s",
}
"""The rows of each table that a worker may change."""
LAST: Final = (*("run_id", "open_deps", "fence", "starts", "holder_run_id", "outcome", "end_reason"), "state", "status")
"""Columns that decide who holds what are written last: once the run is let go, nothing else of it is accepted."""
COUNTED: Final = (
    "UPDATE runs SET last_seq = greatest(last_seq, (SELECT coalesce(max(seq), 0) FROM events WHERE run_id = %(own)s)),"
    " last_node = (SELECT coalesce(max(number), 0) FROM nodes WHERE run_id = %(own)s) WHERE id = %(own)s"
)
LET_GO: Final = (
    "UPDATE runs SET status = 'queued', worker_id = '' WHERE id = %(own)s",
    "UPDATE steps SET status = 'ready', worker_id = '', holder_run_id = '' WHERE key = %(own_step)s",
)
COMPLETED: Final = "UPDATE steps SET status = 'completed', outcome = 'clean', ended_us = 1 WHERE key = %(own_step)s"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A column that the role may write, how, and of which type it is."""

    table: str
    verb: str
    column: str
    type: str

    def statement(self) -> str:
        if self.verb == "UPDATE":
            assert self.table in UPDATES, f"say in UPDATES which rows of {self.table} a worker may change"
            return f"UPDATE {self.table} SET {self.column} = %(value)s WHERE {UPDATES[self.table]}"
        row = INSERTS.get(self.table, {})
        assert self.column in row, f"say in INSERTS what a worker inserts into {self.table}.{self.column}"
        values = ("%(value)s" if column == self.column else value for column, value in row.items())
        return f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({', '.join(values)})"

    @property
    def is_json(self) -> bool:
        return "json" in metadata.tables[self.table].columns[self.column].info.get("limit", "")


def places(url: str) -> list[Place]:
    """Return what the catalogue says that the worker's role may write, what decides who holds what last."""
    with psycopg.connect(plain(url)) as connection:
        rows = connection.execute(
            "SELECT given.table_name, given.privilege_type, given.column_name, columns.data_type"
            " FROM information_schema.column_privileges AS given JOIN information_schema.columns"
            " USING (table_schema, table_name, column_name)"
            " WHERE given.grantee = %s AND given.table_schema = current_schema()"
            " AND given.privilege_type IN ('INSERT', 'UPDATE')",
            (WORKER,),
        ).fetchall()
    found = [Place(*row) for row in rows]
    return sorted(found, key=lambda place: (place.column in LAST or place.column == "worker_id", place))


def made(random: Random, depth: int = 0) -> Any:
    """Return a JSON value by chance; its keys are those that readers look for."""
    keys = ("v", "message", "parts", "tool", "tool_call_id", "error", "type", "output", "denials", "what", "requests")
    leaves: Sequence[Callable[[], Any]] = (
        *(lambda: None, lambda: random.random() < 0.5, lambda: random.randint(-(2**70), 2**70)),
        *(
            lambda: random.choice(keys),
            lambda: "\ud83d\ude00" * random.randint(0, 3),
            lambda: random.uniform(-1, 1e300),
        ),
    )
    kind = random.randint(0, 9)
    if depth > 4 or kind < 4:
        return random.choice(leaves)()
    if kind < 6:
        return [made(random, depth + 1) for _ in range(random.randint(0, 4))]
    return {random.choice(keys): made(random, depth + 1) for _ in range(random.randint(0, 5))}


def texts() -> list[str]:
    random = Random(SEED)
    return [*TEXTS, *(json.dumps({"v": 1, "a": made(random), "message": made(random)}) for _ in range(MADE))]


def test_every_column_that_a_worker_may_write_is_covered(role_urls: RoleUrls) -> None:
    found = places(role_urls.worker)

    assert {place.type for place in found} <= {"text", "bigint"}, "say which values of that type are hostile"
    assert all(place.statement() for place in found)


@dataclass
class Attack:
    """One run of the fuzz: how often a value was written, by place, and what readers said of it."""

    deployment: Deployment
    folder: Path
    written: Counter[Place] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)

    async def rounds(self) -> AsyncIterator[tuple[int, str]]:
        """Yield each value and its number, while the bad worker has a step of its own that another waits for."""
        deployment, bench, values = self.deployment, self.deployment.bench, [*enumerate(texts())]
        for start in range(0, len(values), AT_ONCE):
            held: list[tuple[str, Claim]] = []
            for _ in values[start : start + AT_ONCE]:
                task = make_task(bench.session_id, make_step("mine"), make_step("after", depends_on=("mine",)))
                await bench.store.tasks.create_task(task)
                worker = await open_worker(deployment.own_store)
                held.append((worker, await claim_one(deployment.own_store, worker, bench)))
            for value, (deployment.own_worker, deployment.own) in zip(values[start:], held, strict=False):
                yield value
            await self.look([text[:200] for _, text in values[start : start + AT_ONCE]])

    async def drain(self) -> None:
        """Let honest workers claim and end all that is ready, as they do: a claim of malformed rows fails."""
        bench = self.deployment.bench
        worker = await open_worker(bench.store)
        wish: dict[str, Any] = {"pools": ("default",), "capabilities": (), "live_workers": 1}
        for _ in range(10):
            now_us = bench.clock.now_us()
            advance = await bench.store.claims.advance(worker, (), claim=20, **wish, now_us=now_us)
            if not advance.claims:
                break
            self.malformed["claim"] += sum(bool(claim.malformed) for claim in advance.claims)
            for claim in advance.claims:
                await bench.store.runs.nodes(claim.identity.run_id)
                await bench.store.runs.calls(claim.identity.run_id)
            ends = [completed(claim, "done") for claim in advance.claims]
            await bench.store.claims.advance(worker, ends, claim=0, **wish, now_us=now_us)

    async def look(self, written: Sequence[str]) -> None:
        """Read everything, let honest workers work, and read it again; then a neighbour's step has completed."""
        store = self.deployment.bench.store
        neighbour = make_task(self.deployment.bench.session_id, make_step("neighbour"))
        await store.tasks.create_task(neighbour)
        try:
            await read_everything(self.deployment, self.folder, limit=SHOWN)
            await self.drain()
            await read_everything(self.deployment, self.folder, limit=SHOWN)
        except Exception as error:
            error.add_note(f"after {written!r} were written")
            raise
        step = await store.tasks.step(f"{neighbour.id}/neighbour")
        assert step.status is StepStatus.COMPLETED, f"after {written!r}"

    async def count_malformed(self) -> None:
        """Count by kind what readers say is malformed, of all that stands, and of what the audit log tells."""
        store = self.deployment.bench.store
        for run in await store.runs.run_page(limit=10_000):
            self.malformed["run"] += bool(run.malformed)
            self.malformed["node"] += sum("malformed_row" in node.payload for node in await store.runs.nodes(run.id))
            events = await store.runs.events(run.id, limit=10_000)
            told = [event for event in events if event.type == EventType.SECURITY]
            self.malformed["event"] += sum(event.data.get("what") == "malformed_row" for event in told)
        for task in await store.tasks.list_tasks(limit=10_000):
            steps = await store.tasks.steps(task.id)
            self.malformed["step"] += sum(
                step.error is not None and step.error.type == "malformed_row" for step in steps
            )
        for entry in await store.audit.audit_entries(kinds=[AuditKind.SECURITY], limit=10_000):
            if entry.data.get("what") == "malformed_row":
                self.malformed[str(entry.data.get("row", ""))] += 1


@pytest.mark.timeout(600)
@pytest.mark.spec("OPS-12.d")
async def test_no_value_that_the_database_takes_from_a_worker_stops_anybody(
    deployment: Deployment, tmp_path: Path
) -> None:
    attack = Attack(deployment, tmp_path)
    all_places = places(deployment.urls.worker)
    async for number, text in attack.rounds():
        for place in all_places:
            value = text if place.type == "text" else NUMBERS[number % len(NUMBERS)]
            told = await deployment.try_(place.statement(), value=value)
            attack.written[place] += told.get("rows", 0) > 0
        await deployment.try_(COUNTED)
        for statement in LET_GO if number % 2 else (COMPLETED,):
            await deployment.try_(statement)
    await read_runs(deployment, 10_000)
    await read_tasks(deployment, 10_000, tmp_path)
    await attack.count_malformed()

    documents = {place for place in all_places if place.is_json}
    assert {place for place in documents if not attack.written[place]} == set()
    assert attack.malformed["report"]
    assert attack.malformed["event"]
    assert attack.malformed["node"]


@pytest.mark.timeout(600)
@pytest.mark.spec("OPS-12.d")
async def test_no_value_that_is_written_past_the_row_checks_stops_anybody(
    deployment: Deployment, tmp_path: Path
) -> None:
    attack = Attack(deployment, tmp_path)
    documents = [place for place in places(deployment.urls.worker) if place.is_json]
    with psycopg.connect(plain(deployment.urls.admin), autocommit=True) as admin:
        admin.execute("ALTER TABLE runs DISABLE TRIGGER soong_told_runs")
        async for _, text in attack.rounds():
            for place in documents:
                values = {**deployment.names, "value": text}
                attack.written[place] += admin.execute(place.statement().encode(), values).rowcount > 0
            admin.execute(COUNTED.encode(), deployment.names)
            admin.execute(COMPLETED.encode(), deployment.names)
        await read_runs(deployment, 10_000)
        await read_tasks(deployment, 10_000, tmp_path)
    await attack.count_malformed()

    assert {place for place in documents if not attack.written[place]} == set()
    assert {
        kind for kind in ("report", "worker", "run", "step", "node", "event", "claim") if not attack.malformed[kind]
    } == (set())


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
def test_a_worker_ends_no_connection_of_another_and_hides_no_large_object(url: str) -> None:
    ends = ("pg_terminate_backend(%(other)s)", "pg_cancel_backend(%(other)s)")
    makes = ("lo_create(0)", "lo_creat(-1)", "lo_from_bytea(0, 'x')")
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as bad:
        for statement in (*ends, *makes):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bad.execute(f"SELECT {statement}".encode(), {"other": other.info.backend_pid})

            assert other.execute("SELECT 1").fetchone() == (1,), statement
