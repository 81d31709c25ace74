"""A client's way to a service: the configured deployment, the running one of the home, or one it starts itself."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from soong.orchestrator.embedded.control import ControlClient
from soong.orchestrator.embedded.early_service import drop, order
from soong.orchestrator.embedded.folders import child_environment, module_command, prepare_home
from soong.orchestrator.embedded.own_modules import RunningModules
from soong.orchestrator.embedded.service_file import ServiceRecord, read_record
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
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


async def living_service(settings: Settings) -> ServiceRecord | None:
    """Return the record of the home's service if it lives and answers; None also while it stops.

    Raises:
        UnavailableError: its process lives and does not answer (stopped, frozen, starting for too long).
    """
    record = read_record(settings.home)
    if record is None or not record.is_process_alive:
        return None
    try:
        control = await ControlClient.open(record.control)
        try:
            answer = await control.ask("hello")
        finally:
            await control.close()
    except UnavailableError:
        if read_record(settings.home) != record or record.is_stopping or not record.is_process_alive:
            return None
        raise
    return record if answer.get("pid") == record.pid else None


async def attach(
    settings: Settings,
    *,
    may_start: bool = True,
    start_after_s: float = 0.0,
    tell: Callable[[str], None] = lambda _sentence: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Attachment:
    """Return a hold on the service of these settings, starting an ephemeral one when there is none.

    With ``start_after_s`` one that is about to be there is waited for so long before another is started. ``meanwhile``
    is called when one has been started and is waited for; it must return at once.

    Raises:
        UnavailableError: there is none and none may be started, or it did not start; says why, with its last words.
    """
    if settings.database_url:
        drop()
        return Attachment(settings)
    if may_start:
        await RunningModules(settings, tell).settle()
    with _ending_what_was_started() as own:
        return await _attach(
            settings, own, may_start=may_start, start_after_s=start_after_s, tell=_once(tell), meanwhile=meanwhile
        )


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return ``tell`` without repetitions: a service that we started and that finds the home held is started again."""
    told: set[str] = set()

    def tell_once(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    return tell_once


@contextmanager
def _ending_what_was_started() -> Iterator["_Own"]:
    """Kill the service that was started for a client that does not come to hold it: interrupted, or given up."""
    own = _Own()
    try:
        yield own
    except BaseException:
        if own.started is not None:
            own.started.kill()
        raise


@dataclass(slots=True)
class _Own:
    """The service that this client has started, if any."""

    started: Attachment | None = None


async def _attach(
    settings: Settings,
    own: _Own,
    *,
    may_start: bool,
    start_after_s: float,
    tell: Callable[[str], None],
    meanwhile: Callable[[], None],
) -> Attachment:
    start_s = asyncio.get_running_loop().time() + start_after_s
    deadline = start_s + timing.START_LIMIT_S
    while True:
        started = own.started
        joined = await _join(settings)
        if joined is not None:
            drop()
            if started is not None and started.process is not None and joined.record is not None:
                is_ours = started.process.pid == joined.record.pid
                joined.process, joined.log = (started.process, started.log) if is_ours else (None, None)
            return joined
        if not may_start:
            raise UnavailableError("no service is running; start one with `soong up`")
        if started is None and asyncio.get_running_loop().time() < start_s:
            await asyncio.sleep(timing.POLL_PROCESS_S)
            continue
        if started is None:
            tell("starting a service …")
            started = own.started = _start(settings)
            meanwhile()
        if _ended_for_another(started):
            # The holder is starting, or just ending: join it, or take its place.
            own.started = None
            await asyncio.sleep(timing.RETRY_EVERY_S)
        if asyncio.get_running_loop().time() > deadline:
            raise _not_ready(settings, started)
        await asyncio.sleep(timing.POLL_PROCESS_S)


async def _join(settings: Settings) -> Attachment | None:
    """Attach to the living service, or return None: there is none, or it has begun to stop."""
    record = read_record(settings.home)
    if record is None or not record.is_process_alive:
        return None
    try:
        control = await ControlClient.open(record.control)
    except UnavailableError:
        return None
    try:
        answer = await control.ask("attach")
    except UnavailableError:
        await control.close()
        return None
    if answer.get("ok") is not True or answer.get("pid") != record.pid:
        await control.close()
        return None
    update = {"redis_url": record.redis_url, "database_url": "" if settings.is_embedded else settings.database_url}
    return Attachment(settings.model_copy(update=update), control, record)


def _start(settings: Settings) -> Attachment:
    log = _log_file(prepare_home(settings))
    arguments, environment = ("up", "--ephemeral", "--log", str(log)), child_environment(settings)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = order(arguments, environment, settings.home, log) or subprocess.Popen(
            module_command("soong.orchestrator.cli", *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=settings.home,
            # A session of its own: Ctrl-C and the end of this terminal are for the client to tell, not the kernel.
            start_new_session=True,
        )
    return Attachment(settings, process=process, log=log)


def _ended_for_another(started: Attachment) -> bool:
    """Say whether the service that we started found its home held. Raises: UnavailableError when it failed."""
    assert started.process is not None
    code = started.process.poll()
    if code is None or code == EXIT_HELD:
        return code is not None
    raise UnavailableError(f"the service did not start (exit code {code}){last_words(started.log)}")


def _not_ready(settings: Settings, started: Attachment | None) -> UnavailableError:
    if started is not None:
        started.kill()
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


def _log_file(home: Path) -> Path:
    folder = home / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    logs = sorted(folder.glob("service-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[: -(LOGS_KEPT - 1)]:
        old.unlink(missing_ok=True)
    return folder / f"service-{os.getpid()}-{os.urandom(3).hex()}.log"
