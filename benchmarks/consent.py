"""P: what it takes to ask, beside a bare round trip over Redis streams in the same minute.

**asking** is one question at a time on an idle deployment of PostgreSQL: from the moment the request is made in
the worker to the moment the call starts there, by the events of the run; between them lie the owner's look at the
rows, a client's callback that answers at once, its answer row, the owner's signed decision, the worker's check and its
consumption. The peer is a message to another process over a Redis stream and one back, nothing else: no row, no
identity, no signature; once as often as questions are asked here, once in a tight loop. Between two questions a machine
goes to rest, and each process, thread and server of the way has to be woken: of that a tight loop knows nothing.
**crowd** is a thousand questions of twenty sessions at once (:mod:`benchmarks.crowd`), on two worker processes as they
are by default, and on four with eight slots each, all of which have run agents before; what has to be true of it is
checked in rows and files.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.crowd import Asker, faults_of, plan_of, play
from benchmarks.fleet import Fleet, fleet
from benchmarks.handing_over import prepare
from benchmarks.meter import settled_cpu_s
from benchmarks.report import Figure, Finding
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import ApprovalMode
from tests.log_entries import POSTGRES_EVENTS
from tests.servers import postgres_server, redis_server

NAME: Final = "consent"
WORKERS: Final = 4
AS_BY_DEFAULT: Final = (2, int(Settings.model_fields["slots"].default))
"""Workers that a service has on two cores, and the slots of each."""
SESSIONS: Final = 20
ITEMS: Final = 50
SINGLES: Final = 40
ROUND_TRIPS: Final = 400
PACED_ROUND_TRIPS: Final = 60
PEER: Final = "streams in a loop"
PACED_PEER: Final = "streams as often"
_LATENCIES: Final = f"""
    SELECT coalesce(array_agg((started.time_us - asked.time_us) / 1000.0), '{{}}')
    FROM runs JOIN {POSTGRES_EVENTS} AS asked ON asked.run_id = runs.id AND asked.type = 'permission_requested'
              JOIN {POSTGRES_EVENTS} AS started ON started.run_id = runs.id AND started.type = 'tool_started'
                AND started.data::json->>'tool_call_id' = asked.data::json->>'tool_call_id'
    WHERE runs.task_id = ANY(%s)
"""
CONSUMED_ELSEWHERE: Final = """
    SELECT count(*), count(*) FILTER (WHERE d.body::json->>'run_id' IS DISTINCT FROM c.run_id
        OR d.body::json->>'tool_call_id' IS DISTINCT FROM c.tool_call_id)
    FROM consumptions AS c LEFT JOIN decisions AS d ON d.id = c.decision_id
"""
_ASKED: Final = "SELECT count(*) FROM permission_requests"


def run(rounds: int) -> Finding:
    """Measure ``rounds`` times; the first question of each round warms up and is not counted."""
    asking: list[float] = []
    bare: list[float] = []
    paced: list[float] = []
    with (
        postgres_server(durable=True) as server,
        fleet(server, WORKERS) as own,
        redis_server() as broker,
        tempfile.TemporaryDirectory(prefix="soong-bench-") as project,
    ):
        with _echo(broker.socket_url) as peer:
            for number in range(rounds):
                took, pause_s = _singles(own, Path(project) / f"singles{number}")
                asking += took
                bare += _round_trips(peer, ROUND_TRIPS)
                paced += _round_trips(peer, PACED_ROUND_TRIPS, pause_s=pause_s)
        found = _asking(asking, PACED_PEER, paced).and_also(_asking(asking, PEER, bare))
        found = found.and_also(_crowd(own, Path(project) / "crowd"))
        settled_cpu_s([process.pid for process in own.processes])
        with fleet(server, *AS_BY_DEFAULT) as usual:
            return found.and_also(_crowd(usual, Path(project) / "usual"))


def askers_of(home: Path, folder: Path, sessions: int, items: int, *, first: int = 0) -> list[Asker]:
    """Return a crowd that writes into one folder, prepared and not handed over yet."""
    folder.mkdir()
    plans = ((number, plan_of(number, folder, items)) for number in range(first, first + sessions))
    return [
        Asker(number, folder, items, prepare(home, plan, ApprovalMode.PROMPT, project=folder)) for number, plan in plans
    ]


def _singles(own: Fleet, folder: Path) -> tuple[list[float], float]:
    """Let one session ask one question a step, one step after another, and allow each.

    Return how long each question took, in ms, and how many seconds lay between two of them.
    """
    folder.mkdir()
    plan = plan_of(1, folder, SINGLES, is_chain=True)
    asker = Asker(1, folder, SINGLES, prepare(own.home, plan, ApprovalMode.PROMPT, project=folder))
    began = time.perf_counter()
    own.runner.run(play(own.client, [asker]))
    elapsed_s = time.perf_counter() - began
    took = _latencies(own, [asker])
    return took[1:], max(0.0, elapsed_s - sum(took) / 1000) / SINGLES


def _crowd(own: Fleet, folder: Path) -> Finding:
    folder.mkdir()
    # A worker imports what agents need with its first one: a fifth of their CPU time in all of this.
    first = askers_of(own.home, folder / "first", own.workers, own.slots_each, first=50)
    own.runner.run(play(own.client, first))
    askers = askers_of(own.home, folder / "crowd", SESSIONS, ITEMS, first=100)
    settled_cpu_s([process.pid for process in own.processes])
    before = int(str(own.ask(_ASKED)[0]))
    began = time.perf_counter()
    own.runner.run(play(own.client, askers))
    elapsed_s = time.perf_counter() - began
    asked = int(str(own.ask(_ASKED)[0])) - before
    faults = [fault for asker in askers for fault in own.runner.run(faults_of(own.client.store, asker))]
    consumed, elsewhere = own.ask(CONSUMED_ELSEWHERE)
    if asked != SESSIONS * ITEMS:
        faults.append(f"{asked} questions were raised, not {SESSIONS * ITEMS}")
    if elsewhere or not consumed:
        faults.append(f"{elsewhere} of {consumed} decisions were consumed by another call than theirs")
    took = _latencies(own, askers)
    name = f"P2-crowd-{own.workers}x{own.slots_each}"
    lines = [
        Figure(name, "postgresql", "questions", "1/s", round(asked / elapsed_s, 1), "", None, None),
        Figure(name, "postgresql", "wait p50", "ms", round(statistics.median(took), 2), "", None, None),
        Figure(name, "postgresql", "wait p95", "ms", round(_p95(took), 2), "", None, None),
        Figure(name, "postgresql", "faults", "of 1000", len(faults), "", None, None),
    ]
    return Finding(lines, faults)


def _latencies(own: Fleet, askers: Sequence[Asker]) -> list[float]:
    """Return the times from request to start in ms, in the order of asking."""
    found = own.ask(_LATENCIES, [asker.submission.task.id for asker in askers])[0]
    assert isinstance(found, list)
    return [float(value) for value in found]


def _asking(ours: Sequence[float], peer: str, theirs: Sequence[float]) -> Finding:
    lines = [
        Figure("P1-asking", "postgresql", name, "ms", round(own, 3), peer, round(bare, 3), round(own / bare, 2))
        for name, own, bare in (
            (f"p50, {peer}", statistics.median(ours), statistics.median(theirs)),
            (f"p95, {peer}", _p95(ours), _p95(theirs)),
        )
    ]
    return Finding(lines)


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _round_trips(peer: redis.Redis, count: int, *, pause_s: float = 0) -> list[float]:
    """Return how long each bare message there and back took, in ms, with a pause before each."""
    took, last = [], "0"
    for number in range(count):
        time.sleep(pause_s)
        began = time.perf_counter()
        peer.xadd("there", {"n": number})
        last, _ = _next(peer, "back", last)
        took.append((time.perf_counter() - began) * 1000)
    peer.delete("back")
    return took


def _next(client: redis.Redis, stream: str, after: str) -> tuple[str, int]:
    """Wait for the message after one; return its id and its number."""
    replies: Any = client.xread({stream: after}, count=1, block=60_000)
    message_id, fields = replies[0][1][0]
    return message_id.decode(), int(fields[b"n"])


@contextmanager
def _echo(url: str) -> Iterator[redis.Redis]:
    """Yield a client of a Redis on which another process answers each message of one stream on another."""
    process = multiprocessing.get_context("spawn").Process(target=_answer_all, args=(url,), daemon=True)
    process.start()
    with redis.Redis.from_url(url, socket_timeout=30) as client:
        while not client.exists("ready"):
            time.sleep(0.01)
        yield client
        client.xadd("there", {"n": -1})
        process.join(timeout=10)


def _answer_all(url: str) -> None:
    with redis.Redis.from_url(url, socket_timeout=None) as client:
        client.set("ready", 1)
        last, number = _next(client, "there", "0")
        while number >= 0:
            client.xadd("back", {"n": number})
            last, number = _next(client, "there", last)
