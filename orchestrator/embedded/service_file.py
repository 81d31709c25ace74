"""The record of the embedded service of a home: who holds it and where it answers.

``service.lock`` is held by flock for the service's entire life, so there is at most one; the kernel lets go of it
whatever ends the process. ``service.json`` says the rest and is replaced atomically. A record proves nothing by itself:
pid and start must fit a living process, and its control socket must answer.
"""

import fcntl
import json
import os
import time
from pathlib import Path

from msgspec.structs import asdict

from soong.orchestrator.embedded.process_start import birth_of, start_of
from soong.shared.core.errors import ConflictError, InvalidConfigError
from soong.shared.core.value import Value

LOCK_FILE = "service.lock"
RECORD_FILE = "service.json"
RECORD_VERSION = 1
EPHEMERAL = b"ephemeral\n"


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

    def release(self) -> None:
        """Remove the record and let go of the lock."""
        if self._descriptor >= 0:
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
    """Return the record of this process."""
    pid = os.getpid()
    started_at, birth = start_of(pid) or time.time(), birth_of(pid) or ""
    return ServiceRecord(pid, started_at, str(control), redis_url, database_url, version, is_ephemeral, birth)
