"""Steps that are tasks of a user's own Celery app, with a broker, a result backend and a worker of its own (CEL-01)."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery

from soong.orchestrator.operations.outcome import lack_of, missing_function
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import StepError, Task
from tests.servers import redis_server
from tests.system.deployment import ON_SQLITE, Deployment, end
from tests.waiting import wait_until
from tests.warm import WarmProcess

APP = """\
from celery import Celery

app = Celery("shop", broker={url!r} + "1", backend={url!r} + "2", include=["shop.tasks"])
app.conf.task_routes = {"shop.tasks.routed": {"queue": "reports"}}
"""
TASKS = '''\
import datetime, time
from pathlib import Path

from celery import shared_task

from shop.celery import app


@app.task
def add(x, y):
    return x + y


@app.task(bind=True)
def routed(self):
    return {"queue": self.request.delivery_info["routing_key"], **self.request.headers["soong"]}


@app.task
def moment():
    return datetime.datetime.now()


@app.task(ignore_result=True)
def forgetful():
    pass


@app.task
def note(path, until="", fails=0):
    """Write a line at the beginning, and one at the end, once a file is there; fail so often."""
    ledger = Path(path)
    write(ledger, "begin")
    while until and not Path(until).exists():
        time.sleep(0.02)
    write(ledger, "end")
    if ledger.read_text().count("begin") <= fails:
        raise ValueError("not yet")
    return ledger.read_text().split()


@shared_task
def shared(x):
    return x * 10


def write(ledger, word):
    with ledger.open("a") as file:
        file.write(word + "\\n")
'''
STEPS = """\
import asyncio

from celery import chain, group
from soong import step

from shop.tasks import add, shared


@step(name="shop.numbers")
def numbers(**inputs):
    return [1, 2, 3]


@step(name="shop.waits")
def waits(**inputs):
    one = add.delay(1, 2).get(timeout=20)
    many = group(add.s(n, 1) for n in range(3)).apply_async().get(timeout=20)
    chained = chain(add.s(1, 1), add.s(10)).apply_async().get(timeout=20)
    return [one, many, chained]


@step(name="shop.waits_async")
async def waits_async(**inputs):
    return await asyncio.to_thread(add.apply_async((4, 5)).get, timeout=20)


@step(name="shop.stuck")
def stuck(**inputs):
    print("waits")
    return add.apply_async((1, 2), queue="nowhere").get()


@step(name="shop.stuck_async")
async def stuck_async(**inputs):
    print("waits")
    return await asyncio.to_thread(stuck)


@step(name="shop.shares")
def shares(**inputs):
    return shared.delay(4).get(timeout=20)
"""


OTHER = """\
from celery import Celery

broker, backend = {url!r} + "1", {url!r} + "2"
small = Celery("small", broker=broker, backend=backend)
none = Celery("none", broker=broker)
rpc = Celery("rpc", broker=broker, backend="rpc://")
eager = Celery("eager", broker=broker, backend=backend)
eager.conf.task_always_eager = True
brokerless = Celery("brokerless", broker="redis://127.0.0.1:1/0", backend=backend)
number = 7
"""


@dataclass
class Shop:
    """A user's Celery app in a folder, its worker, and a client of it."""

    folder: Path
    client: Celery

    async def serve(self, service: Deployment, slots: int = 8) -> None:
        """Start a worker of Soong that imports the app."""
        environment = {
            "SOONG_FUNCTIONS": "shop.steps,shop.other",
            "SOONG_CELERY_APP": "shop.celery:app",
            "SOONG_DRAIN_S": "120",
            "SOONG_IMPORT_PATH": str(self.folder),
        }
        await service.start_workers(1, slots=slots, **environment)

    async def until_revoked(self, service: Deployment, *celery_ids: str) -> None:
        await service.until(lambda: {self.client.AsyncResult(one).state for one in celery_ids} == {"REVOKED"})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    (package := folder / "shop").mkdir()
    with redis_server() as redis:
        url = f"redis://127.0.0.1:{redis.port}/"
        files = {"__init__": "", "celery": APP, "tasks": TASKS, "steps": STEPS, "other": OTHER}
        for name, text in files.items():
            (package / f"{name}.py").write_text(text.replace("{url!r}", repr(url)))
        options = ("-A", "shop.celery", "worker", "-c", "4", "-Q", "celery,reports", "-l", "info")
        log, environment = folder / "celery.log", {**os.environ, "PYTHONPATH": str(folder)}
        with log.open("wb") as out:
            argv = [sys.executable, "-m", "celery", *options]
            worker = subprocess.Popen(argv, cwd=folder, stdout=out, stderr=out, env=environment)
        try:
            wait_until(lambda: " ready." in log.read_text(), 60)
            yield Shop(folder, Celery(broker=f"{url}1", backend=f"{url}2", set_as_current=False))
        finally:
            end(worker)


def step(id: str, call: str, **more: Json) -> dict[str, Any]:
    return {"id": id, "kind": "celery", "call": f"shop.tasks.{call}", **more}


def plan(*steps: dict[str, Any]) -> JsonObject:
    return {"title": "shop", "steps": list(steps)}


def function(name: str, **more: Json) -> dict[str, Any]:
    return {"id": name, "kind": "python", "call": f"shop.{name}", **more}


def begun(ledger: Path) -> int:
    """Return how often a task has begun that writes this file."""
    return ledger.read_text().count("begin") if ledger.exists() else 0


async def outputs(service: Deployment, task: Task) -> dict[str, Json]:
    ended = await service.finished(task)
    steps = await service.steps(task)
    assert ended.status is TaskStatus.COMPLETED, {key: one.error for key, one in steps.items()}
    return {key: one.output for key, one in steps.items()}


async def celery_id(service: Deployment, task: Task, step_id: str) -> str:
    """Return the id under which the Celery task of a step was sent last, once it was."""
    found: list[Any] = []

    async def is_sent() -> bool:
        run_id = (await service.steps(task))[step_id].run_id
        events = await service.store.runs.events(run_id)
        found[:] = [event.data["task_id"] for event in events if event.type == EventType.CELERY_SENT]
        return bool(found)

    await service.until(is_sent)
    return str(found[-1])


@pytest.mark.spec("CEL-01", "CEL-01.a")
async def test_a_task_of_the_app_runs_between_two_functions_and_for_each_item(service: Deployment, shop: Shop) -> None:
    await shop.serve(service)
    each = step("", "add", args=["${n}"], inputs={"y": 1})
    del each["id"]
    task = await service.submit(
        plan(
            function("numbers"),
            step("add", "add", depends_on=["numbers"], args=["${numbers.output[1]}"], inputs={"y": 40}),
            {
                "id": "each",
                "kind": "map",
                "depends_on": ["numbers"],
                "over": "${numbers.output}",
                "as": "n",
                "step": each,
            },
            step("routed", "routed", app="shop.celery:app"),
            step("queued", "routed", queue="celery"),
            step("small", "add", app="shop.other:small", args=[2, 3]),
            function(
                "echo",
                call="builtin.echo",
                depends_on=["add", "each"],
                inputs={"sum": "${add.output}", "each": "${each.output}"},
            ),
        )
    )

    found = await outputs(service, task)

    assert found["echo"] == {"sum": 42, "each": [2, 3, 4]}
    run_id = (await service.steps(task))["routed"].run_id
    assert found["routed"] == {"queue": "reports", "effect_key": f"{task.id}/routed", "attempt": 1, "run": run_id}
    assert cast("dict[str, str]", found["queued"])["queue"] == "celery"
    assert found["small"] == 5


FAILURES = {
    "unknown": (step("unknown", "ad"), "invalid_input", "has no task 'shop.tasks.ad'; did you mean 'shop.tasks.add'?"),
    "arguments": (step("arguments", "add", args=[1, 2, 3]), "invalid_input", "cannot be sent: TypeError: add() takes"),
    "other": (
        step("other", "add", app="shop.other:number"),
        "invalid_input",
        "'shop.other:number' is 7; expected a Celery app",
    ),
    "none": (step("none", "add", app="shop.other:none"), "invalid_input", "has the result backend None, expected one"),
    "rpc": (step("rpc", "add", app="shop.other:rpc"), "invalid_input", "has the result backend 'rpc://', expected one"),
    "eager": (
        step("eager", "add", app="shop.other:eager"),
        "invalid_input",
        "has task_always_eager, so it sends nothing",
    ),
    "forgetful": (step("forgetful", "forgetful"), "invalid_input", "'shop.tasks.forgetful' has ignore_result"),
    "moment": (
        step("moment", "moment"),
        "execution_failed",
        "the output cannot be stored: $: a datetime is not JSON (from the Celery task shop.tasks.moment)",
    ),
    "nobody": (
        step("nobody", "nobody", app="shop.other:small"),
        "invalid_input",
        "the Celery worker has no task 'shop.tasks.nobody'",
    ),
    "brokerless": (
        step("brokerless", "add", app="shop.other:brokerless", args=[1, 2]),
        "execution_failed",
        "the broker did not take it: OperationalError",
    ),
}


@ON_SQLITE
async def test_each_failure_has_an_error_that_says_what_to_do(service: Deployment, shop: Shop, tmp_path: Path) -> None:
    await shop.serve(service)
    failing = step("failing", "note", args=[str(tmp_path / "ledger"), "", 1])

    task = await service.submit(plan(failing, *(one for one, _, _ in FAILURES.values())))
    await service.finished(task)

    errors = {key: one.error for key, one in (await service.steps(task)).items()}
    for key, (_, type_, words) in FAILURES.items():
        error = errors[key]
        assert error is not None
        assert (error.type, words in error.message) == (type_, True), error
    error = errors["failing"]
    assert error is not None
    assert error.retryable
    assert re.fullmatch(r"ValueError: not yet \(at .*/shop/tasks.py:\d+\)", error.message)
    lines = await service.store.runs.lines((await service.steps(task))["failing"].run_id)
    kept = [line.text for line in lines if line.stream == "traceback"]
    assert (kept[0], kept[-1]) == ("Traceback (most recent call last):", "ValueError: not yet")


@ON_SQLITE
async def test_an_app_that_no_worker_imports_keeps_the_step_waiting_and_is_named(
    service: Deployment, shop: Shop
) -> None:
    await shop.serve(service)
    task = await service.submit(plan(step("add", "add", app="os.path:app", args=[1, 2])))

    async def is_named() -> bool:
        return await lack_of(service.store, (await service.steps(task))["add"]) != ""

    await service.until(is_named)
    steps = await service.steps(task)

    assert await lack_of(service.store, steps["add"]) == "no capable worker: needs the Celery app os.path"
    workers = await service.store.sessions.workers()
    assert "needs the Celery app 'os.path', which no worker" in missing_function([("add", steps["add"].needs)], workers)


@ON_SQLITE
@pytest.mark.spec("CEL-01.b")
async def test_waiting_steps_take_no_slot(service: Deployment, shop: Shop, tmp_path: Path) -> None:
    await shop.serve(service, slots=1)
    gate = tmp_path / "gate"
    waiting = [step(f"n{n}", "note", args=[str(tmp_path / f"{n}"), str(gate)]) for n in range(6)]

    task = await service.submit(plan(*waiting, function("numbers", priority=-1)))
    await service.until(lambda: _are_begun(service, task))
    steps = await service.steps(task)
    gate.touch()

    assert [steps[f"n{n}"].status for n in range(6)] == [StepStatus.RUNNING] * 6
    assert len(await outputs(service, task)) == 7


async def _are_begun(service: Deployment, task: Task) -> bool:
    statuses = {key: one.status for key, one in (await service.steps(task)).items()}
    return statuses.pop("numbers") is StepStatus.COMPLETED and set(statuses.values()) == {StepStatus.RUNNING}


@ON_SQLITE
@pytest.mark.spec("CEL-01.c/retry", "CEL-01.c/timeout")
async def test_a_step_is_tried_again_and_its_time_limit_ends_the_task(
    service: Deployment, shop: Shop, tmp_path: Path
) -> None:
    await shop.serve(service)
    ledgers = {name: tmp_path / name for name in ("again", "slow", "ended")}
    never = str(tmp_path / "never")
    task = await service.submit(
        plan(
            step("again", "note", args=[str(ledgers["again"]), "", 1], retries=1, backoff_s=0.1),
            step("slow", "note", args=[str(ledgers["slow"]), never], timeout_s=1.0, queue="nobodys"),
            step("ended", "note", args=[str(ledgers["ended"]), never], timeout_s=1.0, terminate=True),
        )
    )

    await service.finished(task)
    steps = await service.steps(task)
    shop.client.control.add_consumer("nobodys")
    sent = [await celery_id(service, task, key) for key in ("slow", "ended")]

    assert (steps["again"].status, steps["again"].attempt) == (StepStatus.COMPLETED, 2)
    assert begun(ledgers["again"]) == 2
    too_long = StepError("time_limit", "the step took longer than 1.0 s", retryable=True)
    assert (steps["slow"].error, steps["ended"].error) == (too_long, too_long)
    await shop.until_revoked(service, *sent)
    assert begun(ledgers["slow"]) == 0


@ON_SQLITE
@pytest.mark.spec("CEL-01.c/cancel", "CEL-01.c/pause")
async def test_cancel_and_pause_revoke_the_task_and_a_resume_runs_it_once(
    service: Deployment, shop: Shop, tmp_path: Path
) -> None:
    await shop.serve(service)
    queued, running, gate = tmp_path / "queued", tmp_path / "running", tmp_path / "gate"
    gone = await service.submit(plan(step("gone", "note", args=[str(tmp_path / "gone")], queue="later")))
    task = await service.submit(
        plan(
            step("queued", "note", args=[str(queued)], queue="later"),
            step("running", "note", args=[str(running), str(gate)]),
        )
    )
    sent = [await celery_id(service, gone, "gone"), await celery_id(service, task, "queued")]
    await service.until(lambda: begun(running) == 1)

    await service.command(gone, "cancel")
    await service.command(task, "pause")
    await service.until(lambda: _are_ready(service, task))
    shop.client.control.add_consumer("later")
    await shop.until_revoked(service, *sent)
    gate.touch()
    await service.command(task, "resume")
    found = await outputs(service, task)

    assert found == {"queued": ["begin", "end"], "running": ["begin", "end"]}
    assert await celery_id(service, task, "queued") == f"{sent[1]}.1"
    assert (await service.finished(gone)).status is TaskStatus.CANCELLED
    assert begun(tmp_path / "gone") == 0


async def _are_ready(service: Deployment, task: Task) -> bool:
    return {one.status for one in (await service.steps(task)).values()} == {StepStatus.READY}


@pytest.mark.spec("CEL-01.d")
async def test_after_the_kill_and_the_stop_of_workers_another_one_waits_for_the_same_task(
    service: Deployment, shop: Shop, tmp_path: Path
) -> None:
    await shop.serve(service)
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    task = await service.submit(plan(step("note", "note", args=[str(ledger), str(gate)])))
    sent = await celery_id(service, task, "note")
    await service.until(lambda: begun(ledger) == 1)

    async def is_waited_for_again(fence: int) -> bool:
        one = (await service.steps(task))["note"]
        return one.status is StepStatus.RUNNING and one.fence > fence

    for stop in (WarmProcess.kill, WarmProcess.terminate):
        fence = (await service.steps(task))["note"].fence
        stop(service.workers[-1])
        service.workers[-1].wait(timeout=60)  # below its drain time: the step is handed back at once
        await shop.serve(service)
        await service.until(lambda fence=fence: is_waited_for_again(fence))  # type: ignore[misc]
    gate.touch()

    assert await outputs(service, task) == {"note": ["begin", "end"]}
    assert await celery_id(service, task, "note") == sent


@ON_SQLITE
@pytest.mark.spec("CEL-01.e/thread", "CEL-01.e/coroutine", "CEL-01.e/process")
async def test_functions_wait_for_tasks_of_their_app(service: Deployment, shop: Shop) -> None:
    await shop.serve(service)
    apart = function("waits", isolation="process") | {"id": "apart"}
    task = await service.submit(plan(function("waits"), function("waits_async"), apart, function("shares")))

    found = await outputs(service, task)

    waited = [3, [1, 2, 3], 12]
    assert found == {"waits": waited, "waits_async": 9, "apart": waited, "shares": 40}


@ON_SQLITE
@pytest.mark.spec("CEL-01.e/thread", "CEL-01.e/coroutine")
async def test_a_function_that_waits_for_a_task_ends_with_its_step(service: Deployment, shop: Shop) -> None:
    await shop.serve(service)
    limited = function("stuck", timeout_s=1.5) | {"id": "limited"}
    task = await service.submit(plan(function("stuck"), function("stuck_async"), limited))

    async def wait() -> bool:
        runs = [one.run_id for one in (await service.steps(task)).values()]
        return all([await service.store.runs.lines(run) for run in runs])

    await service.until(wait)
    await service.until(lambda: _have_ended(service, task, "limited"))
    await service.command(task, "cancel")
    await service.until(lambda: _have_ended(service, task, "stuck", "stuck_async"))
    steps = await service.steps(task)

    assert {steps[key].status for key in ("stuck", "stuck_async")} == {StepStatus.CANCELLED}
    assert steps["limited"].error == StepError("time_limit", "the step took longer than 1.5 s", retryable=True)


async def _have_ended(service: Deployment, task: Task, *step_ids: str) -> bool:
    steps = await service.steps(task)
    return all(steps[one].status.is_terminal for one in step_ids)
