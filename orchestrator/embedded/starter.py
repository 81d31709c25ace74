"""A client's way to a service: the configured deployment, the running one of the home, or one it starts itself."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from soong.orchestrator.embedded.control import STARTER, ControlClient, ask_once, environment_digest, join_home
from soong.orchestrator.embedded.folders import child_environment, module_command, prepare_home
from soong.orchestrator.embedded.own_modules import RunningModules
from soong.orchestrator.embedded.service_file import ServiceRecord, read_record
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.settings import Settings

LOGS_KEPT = 10
LOG_LINES_SHOWN = 15
EXIT_HELD = 75
"""Exit code of a service that found its home held by another: its starter joins that one."""

_LEFT_TO_OTHERS: list["subprocess.Popen[bytes]"] = []


@dataclass(slots=True)
class Attachment:
    """A hold on a service. ``settings`` name its database and Redis; ``process`` is set when this client started it.

    Without a ``control`` connection the service is a deployment of its own, which does not count its clients.
    """

    settings: Settings
    control: ControlClient | None = None
    record: ServiceRecord | None = None
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    async def release(self) -> None:
        """Let go; an ephemeral service that nobody else needs ends by itself."""
        if self.control is not None:
            await self.control.close()

    async def wait_until_gone(self, limit_s: float) -> bool:
        """Wait for the end of the service that this client started; True when it has ended (or is not ours)."""
        if self.process is None:
            return True
        try:
            await asyncio.to_thread(self.process.wait, limit_s)
        except subprocess.TimeoutExpired:
            # Another client needs it. It is nobody's child to wait for any more, and no reason for a warning either.
            _LEFT_TO_OTHERS.append(self.process)
            return False
        return True

    def kill(self) -> None:
        """End the service that this client started at once; its children end with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()


HomeState = Literal["none", "living", "stopping", "stuck"]


async def state_of_home(settings: Settings) -> tuple[HomeState, ServiceRecord | None]:
    """Return what became of the service of a home, with its record. One is stuck that lives and does not answer."""
    record = read_record(settings.home)
    if record is None or not record.is_process_alive:
        return "none", record
    try:
        answer = await ask_once(record.control, "hello")
    except UnavailableError:
        if record.is_stopping:
            return "stopping", record
        is_same = read_record(settings.home) == record and record.is_process_alive
        return "stuck" if is_same else "none", record
    return "living" if answer.get("pid") == record.pid else "none", record


async def living_service(settings: Settings) -> ServiceRecord | None:
    """Return the record of the home's service if it lives and answers; None also while it stops.
    Raises: UnavailableError, its process lives and does not answer (stopped, frozen, starting for too long).
    """
    state, record = await state_of_home(settings)
    if state == "stuck":
        raise UnavailableError("the service of the home does not answer")
    return record if state == "living" else None


async def deployment(settings: Settings, *, hint: str = "") -> Settings:
    """Return settings that name the Redis of the living service.

    Without one they stay as they are; with a ``hint``, what else to do:

    Raises: UsageError.
    """
    if settings.redis_url:
        return settings
    record: ServiceRecord | None = None
    with suppress(UnavailableError):
        record = await living_service(settings)
    if record is None and hint:
        raise UsageError(f"no service is running: start one with `soong up`, or set {hint}")
    return settings if record is None else settings.model_copy(update={"redis_url": record.redis_url})


async def attach(
    settings: Settings,
    *,
    may_start: bool = True,
    start_after_s: float = 0.0,
    tell: Callable[[str], None] = lambda _sentence: None,
) -> Attachment:
    """Return a hold on the service of these settings, starting an ephemeral one when there is none.

    With ``start_after_s`` one that is about to be there is waited for so long before another is started.
    Raises: UnavailableError, there is none and none may be started, or it did not start; says why, with its last words.
    """
    if settings.database_url:
        return Attachment(settings)
    if may_start:
        await RunningModules(settings, tell).settle()
    return await _attach(settings, may_start=may_start, start_after_s=start_after_s, tell=tell)


async def _attach(
    settings: Settings, *, may_start: bool, start_after_s: float, tell: Callable[[str], None]
) -> Attachment:
    """Join a service, or start one; one that was started is killed when its client is interrupted, or gives up."""
    loop, started, is_told = asyncio.get_running_loop(), None, False
    start_s = loop.time() + start_after_s
    try:
        while (joined := await _join(settings, started)) is None:
            if not may_start:
                raise UnavailableError("no service is running; start one with `soong up`")
            if started is None and loop.time() >= start_s:
                if not is_told:
                    tell("starting a service …")
                started, is_told = _start(settings), True
            if started is not None and started.process is not None and (code := started.process.poll()) is not None:
                if code != EXIT_HELD:
                    raise UnavailableError(f"the service did not start (exit code {code}){last_words(started.log)}")
                # The holder is starting, or just ending: join it, or take its place.
                started = None
                await asyncio.sleep(timing.RETRY_EVERY_S)
            if loop.time() > start_s + timing.START_LIMIT_S:
                raise _not_ready(settings, started)
            await asyncio.sleep(timing.POLL_PROCESS_S)
    except BaseException:
        if started is not None:
            started.kill()
        raise
    return joined


async def _join(settings: Settings, started: Attachment | None) -> Attachment | None:
    """Attach to the living service, or return None: there is none, or it has begun to stop."""
    record = read_record(settings.home)
    if record is None or not record.is_process_alive:
        return None
    control = await join_home(settings.home)
    if control is None:
        return None
    update = {"redis_url": record.redis_url, "database_url": "" if settings.is_embedded else settings.database_url}
    joined = Attachment(settings.model_copy(update=update), control, record)
    if started is not None and started.process is not None and started.process.pid == record.pid:
        joined.process, joined.log = started.process, started.log
    return joined


def _start(settings: Settings) -> Attachment:
    folder = prepare_home(settings) / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    logs = sorted(folder.glob("service-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[: -(LOGS_KEPT - 1)]:
        old.unlink(missing_ok=True)
    log = folder / f"service-{os.getpid()}-{os.urandom(3).hex()}.log"
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = subprocess.Popen(
            module_command("soong.orchestrator.cli", "up", "--ephemeral", "--log", str(log)),
            env=child_environment(settings, **{STARTER: environment_digest()}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=settings.home,
            # A session of its own: Ctrl-C and the end of this terminal are for the client to tell, not the kernel.
            start_new_session=True,
        )
    return Attachment(settings, process=process, log=log)


def _not_ready(settings: Settings, started: Attachment | None) -> UnavailableError:
    if started is not None:
        return UnavailableError(f"the service was not ready within {timing.START_LIMIT_S:g} s{last_words(started.log)}")
    record = read_record(settings.home)
    holder = f"pid {record.pid}" if record is not None else "an unknown process"
    return UnavailableError(
        f"a service ({holder}) holds {str(settings.home)!r} but does not answer; look with `soong doctor`, then end it"
    )


def last_words(log: Path | None) -> str:
    """Return the end of a service's log, for a message."""
    if log is None:
        return ""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        if not lines:  # a full disk takes no words either
            free_mib = shutil.disk_usage(log.parent).free // 2**20
            return f"\n  its log is empty, and its disk has {free_mib} MiB left: {log}"
        return "".join(f"\n    {line}" for line in lines) + f"\n  its log: {log}"
    return ""
