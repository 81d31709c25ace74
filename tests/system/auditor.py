"""The auditor: checks a deployment's promises from outside, by its tables, its side effects and the process table.

It shares no code with the engine: what the engine believes of itself is what is being checked. Run it on any
deployment, working or at rest::

    python -P -m tests.system.auditor postgresql://… [--effects FILE] [--folder DIR] [--at-rest]

It prints what it counted and every promise it found broken, and ends with 1 when there was one.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
from sqlalchemy import Connection, create_engine, make_url, text

Row: TypeAlias = Mapping[str, Any]

STEP_ENDS: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
RUN_ENDS: Final = frozenset({"completed", "failed", "cancelled"})
LEASED: Final = frozenset({"running"})
STEP_BACK_US: Final = 1_000_000
"""So much earlier than the event before it, an event tells of a wall clock that was set; it breaks no promise."""
SHOWN: Final = 20
"""Most broken promises that are printed one by one."""


@dataclass(frozen=True, slots=True)
class Tables:
    """One consistent picture of the rows that promises are about."""

    sessions: Sequence[Row]
    tasks: Sequence[Row]
    steps: Sequence[Row]
    runs: Sequence[Row]
    events: Mapping[str, Sequence[Row]]
    nodes: Mapping[str, Sequence[int]]
    workers: Sequence[Row]
    owners: Sequence[Row]
    concurrency_limits: Sequence[Row]
    calls: Sequence[Row]
    requests: Sequence[Row]
    consumptions: Sequence[Row]

    @property
    def live_pids(self) -> frozenset[int]:
        return frozenset(row["pid"] for row in (*self.workers, *self.owners) if row["state"] != "gone")


@dataclass(slots=True)
class Report:
    """What was counted and what was found broken."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def expect(self, holds: object, sentence: str) -> None:
        if not holds:
            self.broken.append(sentence)

    def lines(self) -> Iterable[str]:
        yield from (f"{name:<28}{number:>10}" for name, number in sorted(self.counts.items()))
        yield from (f"BROKEN {sentence}" for sentence in self.broken[:SHOWN])
        if len(self.broken) > SHOWN:
            yield f"… and {len(self.broken) - SHOWN} more"
        yield "every promise holds" if not self.broken else f"{len(self.broken)} promises are broken"


def audit(url: str, *, effects: Path | None = None, folder: Path | None = None, at_rest: bool = False) -> Report:
    """Check a deployment. ``at_rest``: nothing runs any more, so nothing may be open. Raises what the database does."""
    tables = read_tables(url)
    report = Report()
    for check in CHECKS:
        check(tables, report)
    if at_rest:
        check_rest(tables, report)
    if effects is not None:
        check_effects(tables, read_effects(effects), report)
    if folder is not None:
        check_processes(tables, folder, report)
    return report


# -- reading
def read_tables(url: str) -> Tables:
    """Read all in one transaction that sees one state."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), isolation_level="REPEATABLE READ")
    else:
        engine = create_engine(parsed, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # the driver begins none for what only reads
            return _read(connection)
    finally:
        engine.dispose()


def _read(connection: Connection) -> Tables:
    def rows(query: str) -> list[Row]:
        return [dict(row) for row in connection.execute(text(query)).mappings()]

    events: dict[str, list[Row]] = defaultdict(list)
    for row in rows("SELECT run_id, seq, type, time_us, data, preceding FROM events ORDER BY run_id, seq"):
        events[row["run_id"]].extend(_events_of(row))
    nodes: dict[str, list[int]] = defaultdict(list)
    for row in rows("SELECT run_id, number, preceding FROM nodes ORDER BY run_id, number"):
        earlier = json.loads(row["preceding"]) if row["preceding"] else []
        nodes[row["run_id"]].extend(range(row["number"] - len(earlier), row["number"] + 1))
    return Tables(
        sessions=rows("SELECT id, owner_id, owner_epoch, is_closed FROM sessions"),
        tasks=rows("SELECT id, status, root_run_id, ended_us FROM tasks"),
        steps=rows(
            "SELECT key, task_id, session_id, kind, status, open_deps, fence, run_id, worker_id, map_key, output, "
            "definition, model, pool, holder_run_id, ended_us, depends_on, dependents FROM steps"
        ),
        runs=rows("SELECT id, task_id, step_key, status, last_seq, last_node, fence, end_reason, attempt FROM runs"),
        events=events,
        nodes=nodes,
        workers=rows("SELECT id, pid, host, state FROM workers"),
        owners=rows("SELECT id, pid, host, state FROM owners"),
        concurrency_limits=rows("SELECT scope, slots FROM concurrency_limits"),
        calls=rows("SELECT run_id, tool_call_id, status, decision_id, is_write FROM calls"),
        requests=rows("SELECT id, run_id, state FROM permission_requests"),
        consumptions=rows("SELECT decision_id FROM consumptions"),
    )


def _events_of(row: Row) -> Iterator[Row]:
    """Yield the events of a row: those of the same write that it holds before its own, then its own."""
    earlier = json.loads(row["preceding"]) if row["preceding"] else []
    told = [*earlier, (row["type"], row["time_us"], json.loads(row["data"]))]
    for number, (kind, time_us, data) in enumerate(told, start=row["seq"] - len(earlier)):
        yield {"run_id": row["run_id"], "seq": number, "type": kind, "time_us": time_us, "data": data}


def read_effects(path: Path) -> list[Row]:
    """Read the lines that step functions left behind."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# -- promises that hold at any moment
def check_logs(tables: Tables, report: Report) -> None:
    """Each run's events and nodes are numbered from 1 without a gap, as far as its row says (EVT-02)."""
    for run in tables.runs:
        seqs = [event["seq"] for event in tables.events.get(run["id"], ())]
        report.counts["events"] += len(seqs)
        report.expect(seqs == list(range(1, run["last_seq"] + 1)), f"the events of {run['id']} have a gap: {seqs}")
        numbers = list(tables.nodes.get(run["id"], ()))
        if run["status"] == "completed" and len(numbers) == run["last_node"] - 1:
            numbers.append(run["last_node"])  # its result, whose content is the output of its step
        report.expect(
            list(numbers) == list(range(1, run["last_node"] + 1)), f"the nodes of {run['id']} have a gap: {numbers}"
        )
        times = [event["time_us"] for event in tables.events.get(run["id"], ())]
        report.counts["clock steps back"] += sum(later < earlier - STEP_BACK_US for earlier, later in pairwise(times))
        types = Counter(event["type"] for event in tables.events.get(run["id"], ()))
        ends = sum(types[f"run_{status}"] for status in RUN_ENDS)
        has_ended = run["status"] in RUN_ENDS
        # The root run of a task that is retried goes on, and ends once more.
        right = ends == has_ended if run["step_key"] else ends >= has_ended
        report.expect(right, f"{run['id']} is {run['status']} and ended {ends} times")


def check_steps(tables: Tables, report: Report) -> None:
    """A step is accepted once, by its latest holder, and never taken again afterwards (DAG-03, DAG-07)."""
    runs: dict[str, list[Row]] = defaultdict(list)
    for run in sorted(tables.runs, key=lambda run: run["attempt"]):
        runs[run["step_key"]].append(run)
    for step in tables.steps:
        history = [event for run in runs.get(step["key"], ()) for event in tables.events.get(run["id"], ())]
        _check_history(step, history, report)
        report.counts[f"steps {step['status']}"] += 1
        if step["kind"] != "map" and step["status"] in STEP_ENDS:
            run_status = {run["id"]: run["status"] for run in runs.get(step["key"], ())}.get(step["run_id"])
            report.expect(run_status in RUN_ENDS, f"{step['key']} is {step['status']} and its run {run_status}")


def _check_history(step: Row, history: Sequence[Row], report: Report) -> None:
    """Check one step's life: claims, ends and what came after them."""
    key, held, highest, accepted = step["key"], 0, 0, 0
    for event in history:
        match event["type"]:
            case "step_claimed":
                fence = event["data"]["fence"]
                report.counts["claims"] += 1
                report.expect(fence > highest, f"{key} was claimed with fence {fence} after {highest}")
                report.expect(not accepted, f"{key} was claimed again after it was completed")
                report.expect(not held, f"{key} was claimed with fence {fence} while {held} held it")
                held = highest = max(highest, fence)
            case "step_lease_expired" | "step_released" | "step_blocked":
                report.counts[event["type"].removeprefix("step_").replace("_", " ")] += 1
                held = 0
            case "step_completed" | "step_failed":
                if step["kind"] != "map" and "fence" in event["data"]:
                    report.expect(event["data"]["fence"] == held, f"{key} was ended by a holder that had lost it")
                accepted += event["type"] == "step_completed"
                held = 0
            case _:
                continue
    if step["kind"] != "map":
        report.expect(accepted == (step["status"] == "completed"), f"{key} was accepted {accepted} times")
        report.expect(step["fence"] >= highest, f"{key} has fence {step['fence']} below the issued {highest}")


def _named(step: Row, column: str) -> list[str]:
    """Return the keys of the steps that a row names by their ids."""
    return [f"{step['task_id']}/{step_id}" for step_id in json.loads(step[column] or "[]")]


def check_unlocking(tables: Tables, report: Report) -> None:
    """A waiting step waits for exactly its unfinished parents; none that may start waits for anything."""
    status = {step["key"]: step["status"] for step in tables.steps}
    parents = {step["key"]: _named(step, "depends_on") for step in tables.steps}
    told = {(key, parent) for key, keys in parents.items() for parent in keys if parent in parents}
    both = {(child, step["key"]) for step in tables.steps for child in _named(step, "dependents") if child in parents}
    report.expect(told == both, f"steps and what they depend on do not agree: {sorted(told ^ both)[:5]}")
    for step in tables.steps:
        open_ = sum(status.get(key) != "completed" for key in parents.get(step["key"], ()))
        if step["status"] == "pending":
            report.expect(step["open_deps"] == open_, f"{step['key']} waits for {step['open_deps']}, {open_} are open")
        elif step["status"] in {"ready", *LEASED, "completed"}:
            report.expect(not open_, f"{step['key']} is {step['status']} before {open_} of its parents")


def _scopes(step: Row) -> set[str]:
    scopes = (("session", "session_id"), ("definition", "definition"), ("model", "model"), ("pool", "pool"))
    return {f"{kind}:{step[column]}" for kind, column in scopes if step[column]}


def check_leases(tables: Tables, report: Report) -> None:
    """A lease is held by a worker that has not been declared gone, within every concurrency limit (DIS-03)."""
    alive = {worker["id"] for worker in tables.workers if worker["state"] != "gone"}
    concurrency_limits = {bound["scope"]: bound["slots"] for bound in tables.concurrency_limits}
    held: Counter[str] = Counter()
    leased = {step["run_id"]: step for step in tables.steps if step["status"] in LEASED}
    for step in leased.values():
        report.expect(step["worker_id"] in alive, f"{step['key']} is held by {step['worker_id']!r}, which is gone")
        holder = leased.get(step["holder_run_id"])
        # A step that a run holds beside its own is no further agent at work where that counts already.
        held.update(_scopes(step) - (_scopes(holder) if holder is not None else set()))
    for scope, bound in concurrency_limits.items():
        report.expect(held[scope] <= bound, f"{held[scope]} leases in {scope}, which is limited at {bound}")
    report.counts["leases held"] = sum(step["status"] in LEASED for step in tables.steps)


def check_sessions(tables: Tables, report: Report) -> None:
    """A session is owned by nobody or by one owner that has not been declared gone."""
    alive = {owner["id"] for owner in tables.owners if owner["state"] != "gone"}
    for session in tables.sessions:
        owner = session["owner_id"]
        report.expect(not owner or owner in alive, f"session {session['id']} is owned by {owner}, which is gone")
    report.counts["adoptions"] = sum(session["owner_epoch"] for session in tables.sessions)


def check_tasks(tables: Tables, report: Report) -> None:
    """A task that has ended has nothing open; a completed one has nothing failed in a way that stops it."""
    status = {task["id"]: task["status"] for task in tables.tasks}
    for step in tables.steps:
        of_task = status[step["task_id"]]
        if of_task in {"completed", "failed", "cancelled"}:
            report.expect(step["status"] in STEP_ENDS, f"{step['key']} is {step['status']}, its task {of_task}")
    report.counts["tasks"] = len(tables.tasks)


def check_consent(tables: Tables, report: Report) -> None:
    """A decision is used once; no question of an ended run is open; no call of one is open (PER-07, DAG-09)."""
    ended = {run["id"] for run in tables.runs if run["status"] in RUN_ENDS}
    used = Counter(row["decision_id"] for row in tables.consumptions)
    for call in tables.calls:
        if call["run_id"] in ended:
            name = f"{call['run_id']}/{call['tool_call_id']}"
            report.expect(call["status"] != "started", f"the call {name} of an ended run has no end")
    for decision_id, number in used.items():
        report.expect(number == 1, f"the decision {decision_id} was used {number} times")


CHECKS: Final[Sequence[Callable[[Tables, Report], None]]] = (
    check_logs,
    check_steps,
    check_unlocking,
    check_leases,
    check_sessions,
    check_tasks,
    check_consent,
)


# -- promises that hold when nothing runs any more
def check_rest(tables: Tables, report: Report) -> None:
    """Nothing is lost: every task, step and run has ended, and no question is open."""
    for task in tables.tasks:
        report.expect(task["ended_us"] is not None, f"task {task['id']} is {task['status']}: lost")
    for step in tables.steps:
        report.expect(step["status"] in STEP_ENDS, f"step {step['key']} is {step['status']}: lost")
    for run in tables.runs:
        report.expect(run["status"] in RUN_ENDS, f"run {run['id']} is {run['status']}: lost")
    for request in tables.requests:
        report.expect(request["state"] != "pending", f"the question {request['id']} is open")


def check_effects(tables: Tables, effects: Sequence[Row], report: Report) -> None:
    """What was accepted did happen, once; what happened besides was refused; nothing began after its step's end."""
    ends = Counter(effect["nonce"] for effect in effects if effect["at"] == "end")
    end_us = {effect["nonce"]: effect["monotonic_us"] for effect in effects if effect["at"] == "end"}
    accepted = set()
    ended_us = {}
    for step in tables.steps:
        output = json.loads(step["output"]) if step["output"] else None
        if step["status"] == "completed" and isinstance(output, dict) and "nonce" in output:
            accepted.add(output["nonce"])
            ended_us[step["key"]] = end_us.get(output["nonce"], 0)
            seen = ends[output["nonce"]]
            report.expect(seen == 1, f"the accepted effect of {step['key']} was seen {seen} times")
    for effect in effects:
        after = effect["at"] == "start" and effect["monotonic_us"] > ended_us.get(effect["step"], sys.maxsize)
        report.expect(not after, f"{effect['step']} began again in process {effect['pid']} after it had ended")
    report.counts["effects begun"] = sum(effect["at"] == "start" for effect in effects)
    report.counts["effects accepted"] = len(accepted)
    report.counts["effects refused"] = sum(ends.values()) - len(accepted)


def check_processes(tables: Tables, folder: Path, report: Report) -> None:
    """Every process that works in ``folder`` descends from a worker or owner that the tables know as alive."""
    for process in psutil.process_iter():
        try:
            if not _works_in(process, folder):
                continue
            family = {process.pid, *(parent.pid for parent in process.parents())}
            command = " ".join(process.cmdline())[:120]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        report.counts["processes"] += 1
        report.expect(family & tables.live_pids, f"process {process.pid} is an orphan: {command}")


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()).is_relative_to(folder)
    except FileNotFoundError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="auditor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--effects", type=Path, help="lines that step functions left behind")
    parser.add_argument("--folder", type=Path, help="no process that works below it may be an orphan")
    parser.add_argument("--at-rest", action="store_true", help="nothing runs any more: nothing may be open")
    options = parser.parse_args()
    report = audit(options.url, effects=options.effects, folder=options.folder, at_rest=options.at_rest)
    for line in report.lines():
        sys.stdout.write(f"{line}\n")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
