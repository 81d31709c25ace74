"""What fault tests share: plans whose effects can be counted, workers that run them, and the auditor's verdict."""

import asyncio
import fcntl
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import make_url

import tests.system.faults.plugin  # noqa: F401  # the plan check knows the functions of its own process
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.system.auditor import audit, read_effects
from tests.system.deployment import Deployment
from tests.waiting import blocking_looks, looks
from tests.warm import WarmProcess

PLUGIN = "tests.system.faults.plugin"


def effect_step(step_id: str, seconds: float, *depends_on: str) -> dict[str, Json]:
    return {"id": step_id, **_effect(seconds), "depends_on": list(depends_on)}


def _effect(seconds: float) -> dict[str, Json]:
    return {"kind": "python", "call": "test.effect", "inputs": {"seconds": seconds}}


def waves(width: int, depth: int, seconds: float) -> dict[str, Json]:
    """Return a plan of ``depth`` waves of ``width`` steps; each waits for two of the wave before it."""
    steps: list[Json] = []
    for wave in range(depth):
        for place in range(width):
            before = {f"w{wave - 1}-{place}", f"w{wave - 1}-{(place + 1) % width}"} if wave else set()
            steps.append(effect_step(f"w{wave}-{place}", seconds, *sorted(before)))
    return {"title": "waves", "steps": steps}


GROWING: JsonObject = {
    "title": "a map, a retry and a join",
    "steps": [
        {"id": "list", "kind": "python", "call": "test.items", "inputs": {"number": 4}},
        {
            "id": "each",
            "kind": "map",
            "over": "${list.output}",
            "as": "item",
            "depends_on": ["list"],
            "step": _effect(0.2),
        },
        {"id": "flaky", "kind": "python", "call": "test.fail_once", "retries": 1, "backoff_s": 0.1},
        effect_step("join", 0.05, "each", "flaky"),
    ],
}


def effects_file(service: Deployment) -> Path:
    return service.home / "effects.jsonl"


async def start_workers(service: Deployment, count: int, *, slots: int = 8, **environment: str) -> None:
    """Start workers that know the functions of the fault tests."""
    known = {"SOONG_FUNCTIONS": f"{PLUGIN},tests.system.scripts", "FAULT_EFFECTS": str(effects_file(service))}
    await service.start_workers(count, slots=slots, **{**known, **environment})


async def freeze_between_writes(service: Deployment, process: WarmProcess) -> None:
    """Stop a process at a moment at which it does not hold SQLite's one lock: with that, nobody could take over."""
    lock = Path(f"{make_url(service.database_url).database}.lock")
    async for _ in looks():
        process.send_signal(signal.SIGSTOP)
        if await asyncio.to_thread(stands_still, process.pid) and await asyncio.to_thread(_is_free, lock):
            return
        process.send_signal(signal.SIGCONT)


async def freeze(process: WarmProcess, seconds: float) -> None:
    """Stop a process for some time, whatever it does."""
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def stands_still(pid: int) -> bool:
    """Wait until every thread of a process has stopped: the signal comes to one first."""
    with suppress(AssertionError):
        for _ in blocking_looks(5):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                tasks = [task.read_text(encoding="utf-8") for task in Path(f"/proc/{pid}/task").glob("*/stat")]
                if all(task.rpartition(")")[2].split()[0] == "T" for task in tasks):
                    return True
    return False


def _is_free(path: Path) -> bool:
    """Say whether a lock becomes free: those that go on writing hold it for milliseconds."""
    with path.open("rb") as lock, suppress(AssertionError):
        for _ in blocking_looks(0.5):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
    return False


def begun(service: Deployment) -> int:
    """Return how many effects have begun."""
    return sum(effect["at"] == "start" for effect in read_effects(effects_file(service)))


async def until_begun(service: Deployment, number: int) -> None:
    await service.until(lambda: begun(service) >= number)


async def done(service: Deployment, task: Task) -> int:
    """Return how many steps of a task are completed."""
    return sum(step.status is StepStatus.COMPLETED for step in (await service.steps(task)).values())


async def until_done(service: Deployment, task: Task, number: int, *, within_s: float = 30) -> None:
    async def are_done() -> bool:
        return await done(service, task) >= number

    await service.until(are_done, within_s=within_s)


async def prove(service: Deployment, *tasks: Task, within_s: float = 60, at_rest: bool = True) -> None:
    """Await that the tasks complete, and let the auditor look."""
    for task in tasks:
        ended = await service.finished(task, within_s=within_s)
        assert ended.status is TaskStatus.COMPLETED, service.logs()
    report = audit(service.database_url, effects=effects_file(service), at_rest=at_rest)
    assert report.broken == []
    assert report.counts["steps completed"] == sum([len(await service.steps(task)) for task in tasks])


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a few MiB; only root may."""
    folder.parent.chmod(0o711)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write until nothing more fits; return the file that holds the space."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(b"\0" * 65_536) == 65_536:
                continue
            while True:
                file.write(b"\0")
        except OSError:
            return ballast
