"""What fault tests load into worker and owner processes: functions with side effects, and faults by environment."""

import asyncio
import importlib
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import RootTransaction

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.storage.celery.app import CeleryBroker
from soong.shared.storage.sql.engine.writer import Writer
from tests.system.faults.parts import part_with

LOST_ANSWER = "lost_answer"
UNDONE = "undone"
STARTING_COMMITS = 3


# -- step functions
@step_function("test.effect")
async def effect(inputs: JsonObject, context: StepContext) -> Json:
    """Leave a line when it starts and one when it ends, ``seconds`` later; return what the second one says."""
    nonce = uuid.uuid4().hex
    seconds = inputs.get("seconds", 0.0)
    assert isinstance(seconds, int | float)
    _note_effect("start", nonce, context)
    await asyncio.sleep(float(seconds) + float(os.environ.get("FAULT_PACE", "0")))
    _note_effect("end", nonce, context)
    return {"nonce": nonce}


@step_function("test.items")
def items(inputs: JsonObject, context: StepContext) -> Json:
    """Return as many items as asked for."""
    number = inputs.get("number", 0)
    assert isinstance(number, int)
    return [f"item{index}" for index in range(number)]


@step_function("test.fail_once")
def fail_once(inputs: JsonObject, context: StepContext) -> Json:
    """Fail in the first attempt."""
    if context.attempt == 1:
        raise ConnectionError("the first attempt fails")
    return context.attempt


@step_function("test.allocate")
def allocate(inputs: JsonObject, context: StepContext) -> Json:
    """Take more memory than this process may have."""
    return len(bytearray(64 * 2**30))


@step_function("test.exhaust")
def exhaust(inputs: JsonObject, context: StepContext) -> Json:
    """Take memory until the kernel ends this process, as it would a leaking one: it picks us by our own wish."""
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    held = []
    while True:
        held.append(os.urandom(2**24))


def _note_effect(at: str, nonce: str, context: StepContext) -> None:
    line = {
        "at": at,
        "nonce": nonce,
        "step": context.effect_key,
        "run": context.identity.run_id,
        "pid": os.getpid(),
        # One clock for all processes of a machine, which nobody sets.
        "monotonic_us": time.monotonic_ns() // 1000,
    }
    # One write to a file opened for appending: lines of many processes never mix.
    descriptor = os.open(os.environ["FAULT_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


# -- faults
def install() -> None:
    """Put the faults that the environment names into this process."""
    if shares := os.environ.get("FAULT_COMMITS"):
        _install_commits({kind: float(share) for kind, share in (one.split(":") for one in shares.split(","))})
    if lost := os.environ.get("FAULT_LOSE"):
        _install_losses({int(number) for number in lost.split(",")})
    if death := os.environ.get("FAULT_DIE"):
        _install_death(*death.split(":"))
    if offset := os.environ.get("FAULT_CLOCK"):
        _install_clock(Path(offset))
    if protocol := os.environ.get("FAULT_PROTOCOL"):
        vars(importlib.import_module("soong.worker.heartbeat"))["PROTOCOL"] = int(protocol)


def _install_commits(shares: dict[str, float]) -> None:
    choice = random.Random(f"{os.environ.get('FAULT_SEED', '0')}/{os.getpid()}")

    spared = itertools.count()

    def faulty(transaction: RootTransaction) -> None:
        # A process may start in peace: one that cannot register ends, and is somebody else's to start again.
        drawn = choice.random() if next(spared) >= STARTING_COMMITS else 0.5
        if drawn < shares.get(UNDONE, 0.0):
            transaction.rollback()
            raise ConnectionResetError("undone: the transaction was rolled back")
        transaction.commit()
        if drawn > 1 - shares.get(LOST_ANSWER, 0.0):
            sys.stderr.write("fault: lost_answer\n")
            raise ConnectionResetError("lost answer: the transaction was committed")

    Writer.committer = staticmethod(faulty)


def _install_losses(lost: set[int]) -> None:
    numbers = itertools.count()

    def faulty(transaction: RootTransaction) -> None:
        number = next(numbers)
        transaction.commit()
        if number in lost:
            sys.stderr.write("fault: lost_answer\n")
            raise ConnectionResetError("lost answer: the transaction was committed")

    Writer.committer = staticmethod(faulty)


def _install_death(method: str, moment: str) -> None:
    """Kill this process at the first commit after ``method`` was called; ``send`` is the broker's."""
    if method == "send":
        _die_sending(moment)
        return
    if moment == "done":
        _die_when_done(method)
        return
    is_doomed = threading.Event()
    part = part_with(method)
    original: Callable[..., Awaitable[Any]] = getattr(part, method)

    async def doomed(self: object, *given: Any, **named: Any) -> Any:
        is_doomed.set()
        return await original(self, *given, **named)

    def deadly(transaction: RootTransaction) -> None:
        if is_doomed.is_set() and moment == "before":
            _die()
        transaction.commit()
        if is_doomed.is_set():
            _die()

    setattr(part, method, doomed)
    Writer.committer = staticmethod(deadly)


def _die_when_done(method: str) -> None:
    part = part_with(method)
    original: Callable[..., Awaitable[Any]] = getattr(part, method)

    async def deadly(self: object, *given: Any, **named: Any) -> Any:
        if await original(self, *given, **named) is not None:
            _die()

    setattr(part, method, deadly)


def _die_sending(moment: str) -> None:
    original = CeleryBroker.send

    def deadly(self: CeleryBroker, pool: str, dispatch_ids: Any) -> None:
        if moment == "after":
            original(self, pool, dispatch_ids)
        _die()

    CeleryBroker.send = deadly  # type: ignore[method-assign]  # it does not come back


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _install_clock(offset: Path) -> None:
    """Let every reader of this process's wall clock read a wrong one; the monotonic one stays right."""
    real_ns = time.time_ns

    def wrong_ns() -> int:
        return real_ns() + int(float(offset.read_text(encoding="utf-8")) * 1e9)

    time.time_ns = wrong_ns
    time.time = lambda: wrong_ns() / 1e9


install()
