"""The record of the embedded service of a home: who holds it, which process that is, and where it answers.

``service.lock`` is held by flock for the service's entire life, so there is at most one; the kernel lets go of it
whatever ends the process. ``service.json`` has the rest and is replaced atomically. A record proves nothing by itself:
pid and start must fit a living process, and its control socket must answer. Pids are used again and clocks are moved,
so a start is counted in ticks from the boot, with the boot's id.

A staying service takes the home over from an ephemeral one through that one's control socket: it stops in order, and
what waited or ran continues from its rows.
"""

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from msgspec.structs import asdict

from soong.orchestrator.embedded.control import HAND_OVER, ask_once
from soong.shared.core import timing
from soong.shared.core.errors import ConflictError, InvalidConfigError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value

if TYPE_CHECKING:
    from soong.shared.storage.store import Store

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_AFTER_NAME: Final = b") "
"""In ``/proc/PID/stat``: a program chooses its name, which may contain this too, so the last one counts."""
_STATE: Final = 0
_START_TICKS: Final = 19
_ENDED: Final = (b"Z", b"X")

LOCK_FILE = "service.lock"
RECORD_FILE = "service.json"
RECORD_VERSION = 1
EPHEMERAL = b"ephemeral\n"

log = get_logger(__name__)


def birth_of(pid: int) -> str | None:
    """Return the id of the boot and the start of a process in clock ticks since it, ``BOOT/TICKS``.

    No other process has the same, and no clock changes it. None: there is no process of this pid, or it is a zombie.
    Empty: the system is not Linux, or hides its boot id.
    """
    boot = _boot_id()
    if not boot:
        return None if start_of(pid) is None else ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(_AFTER_NAME)[2].split()
    if len(fields) <= _START_TICKS or fields[_STATE] in _ENDED:
        return None
    return f"{boot}/{fields[_START_TICKS].decode('ascii')}"


def start_of(pid: int) -> float | None:
    """Return the start of a living process in seconds since the epoch; None: there is no process of this pid.

    A step of the clock changes it on Linux.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def descends_from(pid: int, ancestor: int) -> bool:
    """Say whether a living process is another one, or was started by it or by one that it started."""
    try:
        return pid == ancestor or any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


@lru_cache(maxsize=1)
def _boot_id() -> str:
    if not sys.platform.startswith("linux"):
        return ""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class ServiceRecord(Value):
    """``birth`` tells its process from a later one with its pid; empty where the system, or an older version, has none.

    Then ``started_at`` does, the process's start in seconds since the epoch, which a step of the clock changes.
    """

    pid: int
    started_at: float
    control: str
    redis_url: str
    database_url: str
    version: str
    is_ephemeral: bool = False
    birth: str = ""

    @property
    def is_stopping(self) -> bool:
        """Say whether the process lives and has begun to stop: its control socket, made before this record, is gone."""
        return self.is_process_alive and not os.path.lexists(self.control)

    @property
    def is_process_alive(self) -> bool:
        """Say whether the process that wrote it still is: the same pid with the same start."""
        birth = birth_of(self.pid)
        if self.birth and birth:
            return birth == self.birth
        start = start_of(self.pid)
        return start is not None and abs(start - self.started_at) < 1.0


class ServiceHeldError(ConflictError):
    """Another process holds the home's service lock."""

    def __init__(self, home: Path, problem: str = "a staying service is not replaced") -> None:
        super().__init__(
            f"a service holds {str(home)!r} already: {problem}; `soong doctor` shows it, `soong down` stops it"
        )


class ServiceLock:
    """The right to be the service of a home. Held from ``acquire`` to ``release`` or the end of the process."""

    def __init__(self, home: Path, *, is_ephemeral: bool = False) -> None:
        self._home = home
        self._is_ephemeral = is_ephemeral
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock without waiting; its file then says of which kind the holder is. Raises: ServiceHeldError."""
        descriptor = os.open(self._home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ServiceHeldError(self._home) from None
        except OSError as error:
            os.close(descriptor)
            raise InvalidConfigError(
                f"{str(self._home)!r} cannot be locked ({error.strerror}); a home on a network file system is refused"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, EPHEMERAL if self._is_ephemeral else b"", 0)
        self._descriptor = descriptor

    def is_holder_ephemeral(self) -> bool:
        """Say whether the process that holds the lock is an ephemeral service, which can be asked to hand over."""
        return (self._home / LOCK_FILE).read_bytes() == EPHEMERAL

    def write(self, record: ServiceRecord) -> None:
        """Replace the record. Only the holder of the lock may."""
        fresh = self._home / f"{RECORD_FILE}.{os.getpid()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"v": RECORD_VERSION, **asdict(record)}, file, indent=1)
        fresh.replace(self._home / RECORD_FILE)

    def holds(self) -> bool:
        """Say whether the locked file is still the home's: a home can be deleted, and made again by another service."""
        try:
            return os.path.samestat((self._home / LOCK_FILE).stat(), os.fstat(self._descriptor))
        except OSError as error:  # a disk that fails for a moment is no deleted home
            return not isinstance(error, FileNotFoundError)

    def release(self) -> None:
        """Remove the record and let go of the lock."""
        if self._descriptor >= 0:
            if self.holds():
                (self._home / RECORD_FILE).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def read_record(home: Path) -> ServiceRecord | None:
    """Return the record of a home, or None when none can be read; one of an older version has no birth."""
    try:
        value = {"birth": "", **json.loads((home / RECORD_FILE).read_text(encoding="utf-8"))}
        return ServiceRecord(**{name: value[name] for name in ServiceRecord.__struct_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def own_record(*, control: Path, redis_url: str, database_url: str, version: str, is_ephemeral: bool) -> ServiceRecord:
    pid = os.getpid()
    started_at, birth = start_of(pid) or time.time(), birth_of(pid) or ""
    return ServiceRecord(pid, started_at, str(control), redis_url, database_url, version, is_ephemeral, birth)


async def take_home(lock: ServiceLock, settings: Settings) -> None:
    """Acquire the home's lock; wait for the end of an ephemeral service that holds it.
    Raises: ServiceHeldError, a staying service holds it, or the ephemeral one does not hand over in time.
    """
    loop = asyncio.get_running_loop()
    limit_s = settings.drain_s + timing.START_LIMIT_S
    deadline_s, asked = loop.time() + limit_s, 0
    while True:
        try:
            lock.acquire()
        except ServiceHeldError as held:
            if not lock.is_holder_ephemeral():
                raise
            if loop.time() > deadline_s:
                problem = f"the ephemeral service does not hand over within {limit_s:g} s"
                raise ServiceHeldError(settings.home, problem) from held
        else:
            return
        record = read_record(settings.home)
        if record is not None and record.pid != asked and record.is_ephemeral and record.is_process_alive:
            with suppress(UnavailableError):  # it is starting or ending
                if (await ask_once(record.control, HAND_OVER)).get("ok") is True:
                    log.info("home_asked_for", pid=record.pid)
                    asked = record.pid
        await asyncio.sleep(timing.POLL_PROCESS_S)


async def expire_dead(store: "Store", *, max_lost_leases: int, now_us: int) -> int:
    """Declare owners and workers of this host gone whose process has ended; return how many."""
    from soong.shared.engine.tasks.claims import lost_to  # the engine, which a client does not pay for

    host = socket.gethostname()
    count = 0
    for worker in await store.sessions.workers():
        if worker.host == host and has_ended(worker.pid, worker.started_us):
            because = lost_to(worker.node_name, "ended while no service ran")
            freed = await store.claims.expire_worker(
                worker.id, worker.beat, max_lost_leases=max_lost_leases, now_us=now_us, because=because
            )
            count += freed is not None
    for owner in await store.sessions.owners():
        if owner.host == host and has_ended(owner.pid, owner.started_us):
            count += await store.sessions.expire_owner(owner.id, owner.beat)
    if count:
        log.info("leftovers_expired", count=count)
    return count


def has_ended(pid: int, started_us: int) -> bool:
    """Return whether the process that registered at that time is known to have ended, before we have registered.

    A start after that time alone proves nothing, since a step of the clock moves it: it has to be a process of ours,
    which comes to the pids of its predecessors in a container. For any other, the lease decides.
    """
    own_pid = os.getpid()
    start = start_of(pid)
    if start is None or pid == own_pid:
        return True
    return start > started_us / 1_000_000 + timing.CLOCK_DOUBT_S and descends_from(pid, own_pid)
