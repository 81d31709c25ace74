import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from soong.shared.agents.requests import USUAL_ANSWER_TOKENS
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import DAY, Budget
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Task
from tests.answering import allow
from tests.scripted import call, calls, error_of
from tests.servers import RedisServer
from tests.system.auditor import audit, read_effects
from tests.system.deployment import LEASE_S, Deployment
from tests.system.faults.provider import Provider
from tests.system.faults.scene import (
    begun,
    effect_step,
    effects_file,
    freeze,
    prove,
    start_workers,
    until_begun,
    until_done,
    waves,
)
from tests.waiting import until

SLEEP = shutil.which("sleep", path="/usr/bin:/bin")
HOUR_S = 3600


@pytest.fixture
async def service(redis_live: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    extra = {"lease_s": getattr(request, "param", LEASE_S)}
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with Deployment(url, redis_live.socket_url, tmp_path, extra=extra) as deployment:
        yield deployment


def command_step(step_id: str, *argv: str) -> dict[str, Json]:
    """Return an agent step that runs a command and tells how the call ended."""
    return {
        "id": step_id,
        "title": step_id,
        "instructions": "Run the command.",
        "allowed_tools": ["code.run_command"],
        **calls(call("code.run_command", argv=list(argv))),
    }


@pytest.mark.spec("DAG-07", "DAG-09.b", "DAG-06")
async def test_a_worker_killed_in_a_command_leaves_no_process_and_does_not_repeat_it(
    service: Deployment, tmp_path: Path
) -> None:
    service.settings.home.joinpath("config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    await start_workers(service, 1)
    plan: JsonObject = {"title": "command", "steps": [command_step("run", str(SLEEP), "987")]}
    task = await service.submit(plan, callback=allow, project=tmp_path)
    await service.until(lambda: _sleeps(987))

    service.workers[0].kill()
    await asyncio.to_thread(service.workers[0].wait, 5)
    killed_at = time.monotonic()
    await service.until(lambda: not _sleeps(987), within_s=5)
    gone_s = time.monotonic() - killed_at
    await start_workers(service, 1)
    ended = await service.finished(task)

    step = (await service.steps(task))["run"]
    types = [event.type for event in await service.store.runs.events(step.run_id)]
    assert gone_s < 5
    assert ended.status is TaskStatus.COMPLETED
    assert (step.outcome, step.lost_leases) == (Outcome.PARTIAL, 1)
    assert types.count(EventType.TOOL_STARTED) == 1
    assert error_of((await service.store.tasks.result(step.key)).output) == "unknown_after_crash"
    assert audit(service.database_url, folder=tmp_path, at_rest=True).broken == []


@pytest.mark.spec("DAG-03")
async def test_a_worker_frozen_for_three_leases_does_nothing_more_when_it_thaws(service: Deployment) -> None:
    await start_workers(service, 1)
    task = await service.submit({"title": "t", "steps": [effect_step("a", 3.0), effect_step("b", 0.05, "a")]})
    await until_begun(service, 1)
    frozen = service.workers[0]
    await freeze(frozen, 3 * LEASE_S)
    thawed_us = time.monotonic_ns() // 1000
    await start_workers(service, 1)

    await prove(service, task)

    # It may take up work again, as a new incarnation; what it held before is over for it.
    (held,) = [effect["nonce"] for effect in read_effects(effects_file(service)) if effect["monotonic_us"] < thawed_us]
    ends = [effect for effect in read_effects(effects_file(service)) if effect["at"] == "end"]
    assert held not in [effect["nonce"] for effect in ends]
    assert len(ends) == 2


@pytest.mark.spec("DAG-03")
async def test_a_thawed_worker_ends_the_threads_of_lost_steps_and_repeats_what_may_be_repeated(
    service: Deployment, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"

    def plan(step_id: str, **more: Json) -> JsonObject:
        inputs = {"ledger": str(ledger), "until": str(tmp_path / "until")}
        return {
            "title": "t",
            "steps": [{"id": step_id, "kind": "python", "call": "test.note", "inputs": inputs, **more}],
        }

    def begun_steps() -> list[str]:
        return sorted(line.split()[1] for line in ledger.read_text().splitlines()) if ledger.exists() else []

    await start_workers(service, 1, SOONG_FUNCTIONS="tests.system.functions,tests.system.faults.plugin")
    plain = await service.submit(plan("plain"))
    late = await service.submit(plan("late", timeout_s=0.3, retries=3))
    cancelled = await service.submit(plan("cancelled"))
    coroutine = await service.submit({"title": "t", "steps": [effect_step("coroutine", 3.0)]})
    await service.until(lambda: len(begun_steps()) == 3 and begun(service) == 1)
    await service.command(cancelled, "cancel")
    await service.until(lambda: _has_error(service, late))

    await freeze(service.workers[0], 2 * LEASE_S)
    await service.until(lambda: len(begun_steps()) == 4 and begun(service) == 2, within_s=15)
    (tmp_path / "until").touch()

    assert (await service.finished(plain)).status is TaskStatus.COMPLETED
    assert (await service.finished(coroutine)).status is TaskStatus.COMPLETED
    assert (await service.finished(late)).status is TaskStatus.FAILED
    error = (await service.steps(late))["late"].error
    assert error is not None
    assert error.type == "unknown_after_crash"
    assert (await service.steps(cancelled))["cancelled"].status is StepStatus.CANCELLED
    assert begun_steps() == ["cancelled", "late", "plain", "plain", "plain"]
    assert [line.split()[:2] for line in ledger.read_text().splitlines()][-1] == ["end", "plain"]


@pytest.mark.spec("DAG-03", "OPS-06", "OPS-06.a", "OPS-06.b")
@pytest.mark.parametrize("service", [20.0], indirect=True)
async def test_a_stopped_worker_hands_a_step_back_when_its_thread_has_ended(
    service: Deployment, tmp_path: Path
) -> None:
    ledger, until = tmp_path / "ledger", tmp_path / "until"

    def ticks() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            *_, pid, at_ns = line.split()
            found.setdefault(pid, []).append(int(at_ns))
        return found

    inputs: JsonObject = {"ledger": str(ledger), "until": str(until)}
    step: JsonObject = {"id": "a", "kind": "python", "call": "test.tick", "inputs": inputs}
    await start_workers(service, 1, SOONG_FUNCTIONS="tests.system.functions", SOONG_DRAIN_S="0.3")
    task = await service.submit({"title": "t", "steps": [step]})
    await service.until(lambda: len(ticks()) == 1)
    await start_workers(service, 1, SOONG_FUNCTIONS="tests.system.functions")

    service.workers[0].terminate()
    await service.until(lambda: len(ticks()) == 2)
    until.touch()

    assert (await service.finished(task)).status is TaskStatus.COMPLETED
    first, second = (ticks()[str(worker.pid)] for worker in service.workers)
    assert max(first) < min(second)
    assert await asyncio.to_thread(service.workers[0].wait, 10) == 0
    assert (await service.steps(task))["a"].lost_leases == 0


async def _has_error(service: Deployment, task: Task) -> bool:
    return all(step.error is not None for step in (await service.steps(task)).values())


@pytest.mark.spec("OPS-06")
async def test_a_second_signal_to_stop_is_no_worse_than_a_kill(service: Deployment) -> None:
    await start_workers(service, 2, slots=2, SOONG_DRAIN_S="30")
    task = await service.submit(waves(4, 2, 1.0))
    await until_begun(service, 4)
    stopped = service.workers[0]

    stopped.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    stopped.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    stopped.send_signal(signal.SIGKILL)

    await prove(service, task)


async def test_clocks_that_jump_ahead_and_back_end_no_lease(service: Deployment, tmp_path: Path) -> None:
    clocks = [tmp_path / name for name in ("worker-clock", "other-clock")]
    for clock in clocks:
        clock.write_text("0", encoding="utf-8")
        await start_workers(service, 1, slots=2, FAULT_CLOCK=str(clock))
    task = await service.submit(waves(4, 4, 0.4))
    await until_begun(service, 4)

    clocks[0].write_text(str(HOUR_S), encoding="utf-8")
    await until_done(service, task, 9)
    clocks[1].write_text(str(-HOUR_S), encoding="utf-8")
    ended = await service.finished(task)

    assert ended.status is TaskStatus.COMPLETED
    assert {step.lost_leases for step in (await service.steps(task)).values()} == {0}
    assert begun(service) == 16
    assert audit(service.database_url, at_rest=True).broken == []


async def test_a_step_that_takes_too_much_memory_fails_alone(service: Deployment) -> None:
    await start_workers(service, 1)
    psutil.Process(service.workers[0].pid).rlimit(psutil.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    greedy: JsonObject = {"title": "greedy", "steps": [{"id": "a", "kind": "python", "call": "test.allocate"}]}

    others = await service.submit(waves(4, 2, 0.2))
    task = await service.submit(greedy)

    ended = await service.finished(task)
    step = (await service.steps(task))["a"]
    assert ended.status is TaskStatus.FAILED
    assert step.error is not None
    assert "MemoryError" in step.error.message
    assert (await service.finished(others)).status is TaskStatus.COMPLETED
    assert service.workers[0].poll() is None


async def test_a_worker_of_another_protocol_gets_no_work(service: Deployment) -> None:
    await start_workers(service, 1, FAULT_PROTOCOL="99")
    task = await service.submit(waves(2, 2, 0.01))

    await asyncio.sleep(5 * service.settings.sweep_s)
    untouched = {step.status for step in (await service.steps(task)).values()}
    await start_workers(service, 1)

    await prove(service, task)
    stranger = service.workers[0].pid
    assert untouched == {StepStatus.READY, StepStatus.PENDING}
    assert {effect["pid"] for effect in read_effects(effects_file(service))}.isdisjoint({stranger})


@pytest.mark.chaos
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a memory group")
async def test_a_step_that_the_kernel_kills_its_worker_for_is_quarantined(service: Deployment) -> None:
    leak: JsonObject = {"title": "leak", "steps": [{"id": "a", "kind": "python", "call": "test.exhaust"}]}
    task = await service.submit(leak)

    for _ in range(3):
        await start_workers(service, 1, slots=1)
        with memory_group(service.workers[-1].pid, 600):
            assert await asyncio.to_thread(service.workers[-1].wait, 60) == -signal.SIGKILL

    ended = await service.finished(task)
    error = (await service.steps(task))["a"].error
    assert ended.status is TaskStatus.FAILED
    assert error is not None
    assert error.type == "poisoned"


@pytest.mark.chaos
async def test_two_hundred_steps_at_once_starve_nobody_beside_a_slow_worker(service: Deployment) -> None:
    await start_workers(service, 3, slots=16)
    await start_workers(service, 1, slots=16, FAULT_PACE="1.0")
    crowd = await service.submit(waves(200, 1, 0.1))
    await until_begun(service, 1)
    one = await service.submit(waves(1, 1, 0.0))

    await prove(service, one, crowd)

    descriptors = [psutil.Process(worker.pid).num_fds() for worker in service.workers]
    threads = [psutil.Process(worker.pid).num_threads() for worker in service.workers]
    order = [effect["step"] for effect in read_effects(effects_file(service)) if effect["at"] == "start"]
    assert order.index(f"{one.id}/w0-0") < 200 - 64
    assert max(descriptors) < 200
    assert max(threads) < 150
    assert await _stop_all(service) < 10


async def test_a_slow_worker_beside_a_quick_one_starves_nobody(service: Deployment) -> None:
    await start_workers(service, 1, slots=6)
    await start_workers(service, 1, slots=6, FAULT_PACE="0.5")
    crowd = await service.submit(waves(48, 1, 0.3))
    await until_begun(service, 1)
    one = await service.submit(waves(1, 1, 0.0))

    await prove(service, one, crowd)

    order = [effect["step"] for effect in read_effects(effects_file(service)) if effect["at"] == "start"]
    assert order.index(f"{one.id}/w0-0") < 36
    assert {step.lost_leases for step in (await service.steps(crowd)).values()} == {0}
    assert await _stop_all(service) < 10


async def _stop_all(service: Deployment) -> float:
    """Ask all workers to stop; return how long the last one took."""
    began_at = time.monotonic()
    for worker in service.workers:
        worker.terminate()
    for worker in service.workers:
        assert await asyncio.to_thread(worker.wait, 20) == 0
    return time.monotonic() - began_at


@contextmanager
def memory_group(pid: int, mebibytes: int) -> Iterator[None]:
    """Let the kernel end a process that takes more than so much."""
    group = Path(f"/sys/fs/cgroup/memory/soong-test-{pid}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(mebibytes * 2**20), encoding="utf-8")
        (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")
        yield
    finally:
        group.rmdir()


def _sleeps(seconds: int) -> bool:
    return any(process.info["cmdline"] == [SLEEP, str(seconds)] for process in psutil.process_iter(["cmdline"]))


@pytest.mark.spec("DIS-11")
async def test_the_tokens_of_a_refused_answer_outlive_a_killed_worker(service: Deployment) -> None:
    await service.store.budgets.set_budget(DAY, Budget(100_000))
    step: dict[str, Json] = {"id": "a", "instructions": "Say that you are done."}
    async with Provider() as provider:
        loaded = "tests.system.faults.provider"
        await service.start_workers(1, SOONG_FUNCTIONS=loaded, FAULT_PROVIDER=provider.url)
        task = await service.submit({"title": "t", "steps": [{**step, "model": "wire:breaking"}]})
        await until(lambda: provider.hanging == 1)
        service.workers[0].kill()

        await service.start_workers(1, SOONG_FUNCTIONS=loaded, FAULT_PROVIDER=provider.url)
        ended = await service.finished(task)

    run = await service.store.runs.run((await service.steps(task))["a"].run_id)
    assert ended.status is TaskStatus.COMPLETED
    assert (run.usage.requests, run.usage.input_tokens, run.usage.output_tokens) == (2, 300, 40)
    budget = (await service.store.budgets.budgets([DAY], day=utc_date(time.time_ns() // 1000)))[DAY]
    assert budget.used.tokens > 340 + USUAL_ANSWER_TOKENS  # and the request that hung, at its estimate
