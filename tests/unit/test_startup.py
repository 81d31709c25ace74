"""What a process sets for itself: garbage collector, open files, logs, threads, clocks and ids."""

import asyncio
import io
import json
import subprocess
import sys
import threading
from base64 import b32hexencode
from collections.abc import Iterator
from pathlib import Path
from random import getrandbits

import pytest
import structlog

from soong.shared.core.foreign import in_thread
from soong.shared.core.identity import base32, new_id
from soong.shared.core.log import configure, get_logger
from soong.shared.core.timing import rfc3339
from soong.shared.sandbox.redact import redactor

PROGRAM = """
import gc
from collections import deque
from soong.shared.core.startup import begin, settle_gc

class Cycle:
    def __init__(self):
        self.own = self

begin()
loaded = len(gc.get_objects())
settle_gc()
searched = len(gc.get_objects())
recent = deque(maxlen=2000)  # each outlives some searches of the young, as a run does
for _ in range(2_000_000):
    recent.append(Cycle())
print(loaded, searched, gc.get_stats()[2]["collections"])
"""


def test_all_that_a_settled_process_left_behind_is_searched_and_its_modules_are_not() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)

    loaded, searched, full_searches = map(int, ran.stdout.split())
    assert full_searches > 0
    assert searched < loaded / 100


RAISE = "import resource; from soong.shared.core.startup import raise_open_files as r; r(2); "
SHOWN = RAISE + "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"


def limited(limits: str, program: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{limits}; exec "$0" -c "$1"', sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("limits", "raised"), [("ulimit -Sn 64", 8192), ("ulimit -n 2000; ulimit -Sn 64", 2000)], ids=["most", "hard"]
)
def test_the_limit_is_raised_as_far_as_it_may_be(limits: str, raised: int) -> None:
    assert limited(limits, SHOWN).stdout.strip() == str(raised)


@pytest.mark.parametrize("service", ["up", "worker", "orchestrator"])
def test_a_service_does_not_start_under_too_low_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOONG_DATABASE_URL", f"sqlite:///{tmp_path}/soong.db")
    monkeypatch.setenv("SOONG_REDIS_URL", "redis://127.0.0.1:1/0")
    called = f"import sys; sys.argv = ['soong', '{service}']; from soong.orchestrator.cli.main import main; main()"

    refused = limited("ulimit -n 40", called)

    assert (refused.returncode, "40 files may be open at once" in refused.stderr) == (2, True)
    assert not (tmp_path / "soong.db").exists()


SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.spec("OPS-05.c")
def test_each_line_of_the_log_is_one_json_object_with_its_event_process_time_and_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", process="worker")
    log = get_logger("tests")

    log.debug("not_said")
    log.info("lease_lost", run="run_1", fence=3)
    log.warning("two\nlines", text="a\nb")

    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "lease_lost", "level": "info", "module": "tests", "process": "worker", "run": "run_1", "fence": 3,
    }  # fmt: skip
    assert (second["event"], second["text"]) == ("two\nlines", "a\nb")


@pytest.mark.spec("EVT-05.c")
def test_no_field_and_no_traceback_of_a_log_line_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", process="test", clean=redactor([SECRET]).text)
    log = get_logger("tests")

    try:
        raise ValueError(SECRET)
    except ValueError as error:
        log.exception("it_failed", words=[SECRET, {SECRET: 1}], error=error, count=3)

    written = stream.getvalue()
    assert SECRET not in written
    assert "it_failed" in written
    assert '"count": 3' in written


async def test_a_stop_iteration_which_no_future_takes_is_an_error_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_a_cancelled_call_that_has_begun_runs_to_its_end_and_harms_no_other() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(30)
        ended.set()

    future = in_thread(call)
    await in_thread(begun.wait, 30)
    future.cancel()
    go_on.set()

    assert await in_thread(ended.wait, 30)
    with pytest.raises(asyncio.CancelledError):
        await future


def test_a_call_that_ends_after_its_loop_is_closed_harms_no_later_loop() -> None:
    go_on = threading.Event()

    async def leave() -> None:
        _ = in_thread(go_on.wait, 30)

    async def call() -> int:
        go_on.set()
        return await in_thread(lambda: 3)

    asyncio.run(leave())

    assert asyncio.run(call()) == 3


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_790_000_000_000_000, "2026-09-21T14:13:20Z"),
        (1_790_000_000_500_000, "2026-09-21T14:13:20.500000Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_instants_are_rfc_3339_to_the_microsecond(us: int, text: str) -> None:
    assert rfc3339(us) == text


def test_ids_sort_by_the_time_they_were_made() -> None:
    made = [new_id("run") for _ in range(100)]

    assert made == sorted(made)
    assert len(set(made)) == 100


def test_ids_are_in_base_32_as_rfc_4648_has_it() -> None:
    numbers = [0, 1, 2**128 - 1, *(getrandbits(128) for _ in range(1_000))]

    assert [base32(number) for number in numbers] == [
        b32hexencode(number.to_bytes(16, "big"))[:26].decode().lower() for number in numbers
    ]
