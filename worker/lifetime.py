"""The lifetime of a worker process: its report to its starter, recycling, retirement, and the pulse that its
parent watches.

A process that has run long enough, or has grown too large, ends in order and executes the program again: its id, its
starter and its standing with a supervisor, with Docker or with Kubernetes stay, so nobody counts a crash, waits for a
back-off or starts a second one. Until then it beats, claims nothing and waits for what it holds, however long that
takes: a step that is longer than the time between two recyclings would otherwise never end.
"""

import asyncio
import os
import random
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock

log = get_logger(__name__)

JITTER: Final = 0.25
"""Each process adds up to this share to its limit, so that those started together part."""

MIB: Final = 2**20

STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
"""Signals that must not be lost between the old program and the new one."""


EXIT_RETIRED: Final = 3
"""Distinguishes this end from a failure for its service (:mod:`soong.orchestrator.embedded.child`)."""

PULSE_FD: Final = "SOONG_PULSE_FD"
PAUSES: Final = 5
"""Signs within the time after which a process counts as hanging."""

STATUS_FD: Final = "SOONG_STATUS_FD"
MAX_CHARS: Final = 2000


def resident_mib() -> int:
    """Return the memory that this process holds now; where the system does not say, the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (MIB if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB


@dataclass(slots=True)
class RecycleLimits:
    """The requests to one process. ``is_told_to_stop``: somebody wants it to end, so it begins no new life."""

    most_runs: int = 0
    most_mib: int = 0
    runs: int = 0
    is_told_to_stop: bool = False
    is_over: bool = False
    """Recycling has begun."""
    left: str = ""
    """The incarnation whose steps the next program hands back (:mod:`soong.worker.bootstrap`)."""
    demanded: str = ""
    """Why it is time, whatever has been run."""
    memory: Callable[[], int] = resident_mib
    pass_on: "Callable[[RecycleLimits], None] | None" = None
    """Hands the watch over the process that started us on to the next program; None where none may follow."""
    _counted: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @classmethod
    def of(
        cls, settings: Settings, choice: random.Random, pass_on: "Callable[[RecycleLimits], None] | None" = None
    ) -> "RecycleLimits":
        """Return the limits of this process: those of the settings and a little more, by chance."""
        most_runs, most_mib = _more(settings.recycle_after, choice), _more(settings.recycle_memory_mb, choice)
        return cls(most_runs, most_mib, pass_on=pass_on)

    def reason(self) -> str:
        """Return why it is time, or nothing. A process that has done nothing is not too large, its limit too small."""
        if self.demanded:
            return self.demanded
        if self.most_runs and self.runs >= self.most_runs:
            return f"it has run {self.runs} steps"
        if self.most_mib and self.runs and (held := self.memory()) >= self.most_mib:
            return f"it holds {held} MiB"
        return ""

    def count_run(self) -> None:
        self.runs += 1
        if self.most_runs and self.runs >= self.most_runs:
            self._counted.set()

    def demand(self, reason: str) -> None:
        """Have the process restart as soon as what it can wait for has ended."""
        self.demanded = self.demanded or reason
        self._counted.set()

    async def until_due(self, look_every_s: float) -> str:
        """Wait until it is time, looking at the memory now and then; return why."""
        while not (reason := self.reason()):
            with suppress(TimeoutError):
                async with asyncio.timeout(look_every_s if self.most_mib else None):
                    await self._counted.wait()
        return reason

    def begin(self) -> None:
        """Set the flag by which Celery stops. SIGTERM to this process could hide an operator's: the kernel delivers two
        that are pending as one.
        """
        from celery.worker import state

        self.is_over = True
        state.should_stop = os.EX_OK

    def restart_now(self, reason: str) -> None:
        """Restart without an end in order, or end: nothing that runs here may continue."""
        if self.pass_on is not None:
            log.error("restarting_at_once", reason=reason)
            restart_in_place(self)
            os._exit(0 if self.is_told_to_stop else 1)


def restart_in_place(recycle_limits: RecycleLimits) -> None:
    """Execute this program again, as it was started; return when it is to end after all.

    A signal to stop that comes from now on waits for the new program, which ends by it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    if (recycle_limits.is_told_to_stop and not recycle_limits.left) or recycle_limits.pass_on is None:
        return
    recycle_limits.pass_on(recycle_limits)
    sys.stdout.flush()
    sys.stderr.flush()
    log.info("recycled", runs=recycle_limits.runs)
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # an argv, no shell
    except OSError as error:
        # The process that supervises this one starts another.
        log.error("not_recycled", error=str(error))


def unblock_signals() -> None:
    """Receive the signals that wait since the program before, which held them back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _more(limit: int, choice: random.Random) -> int:
    return limit + choice.randint(0, int(limit * JITTER)) if limit else 0


@dataclass(slots=True)
class Retirement:
    """Counts the runs that one process holds. ``after_s``: how long it may hold none; 0: as long as it likes."""

    clock: Clock
    after_s: float = 0.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    is_due: bool = False
    _held: int = 0
    _idle_since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._idle_since_s = self.clock.monotonic_s()

    def started(self) -> None:
        self._held += 1

    def ended(self) -> None:
        self._held -= 1
        self._idle_since_s = self.clock.monotonic_s()

    async def until_due(self) -> None:
        """Wait until the process has been idle for long enough; it wakes once in that time."""
        while (left_s := self._left_s()) > 0:
            await self.sleep(left_s)
        self.is_due = True

    def _left_s(self) -> float:
        return self.after_s if self._held else self._idle_since_s + self.after_s - self.clock.monotonic_s()


class InheritedPipe:
    """A pipe that the starter of this process has given it, by its number in the environment, if there is one.

    Made once, before any child of ours could inherit it.
    """

    def __init__(self, variable: str) -> None:
        text = os.environ.pop(variable, "")
        self._variable = variable
        self._descriptor = int(text) if text.isdigit() else -1
        if self._descriptor >= 0:
            os.set_inheritable(self._descriptor, False)

    def pass_on(self) -> None:
        """Leave it to the program that this process executes next."""
        if self._descriptor >= 0:
            os.set_inheritable(self._descriptor, True)
            os.environ[self._variable] = str(self._descriptor)


class Pulse(InheritedPipe):
    """The pipe to the subreaper."""

    def __init__(self, hang_s: float) -> None:
        super().__init__(PULSE_FD)
        self._hang_s = hang_s
        if self._descriptor >= 0:
            os.set_blocking(self._descriptor, False)

    async def beat(self) -> None:
        """Give signs of life until cancelled; from then on none is expected."""
        if self._descriptor < 0 or not self._hang_s:
            return
        try:
            while True:
                self._say(self._hang_s)
                await asyncio.sleep(min(timing.SIGN_OF_LIFE_S, self._hang_s / PAUSES))
        finally:
            self._say(0)

    def pass_on(self) -> None:
        """Leave the pipe to the program that this process executes next; until it beats, no sign is expected."""
        if self._descriptor >= 0:
            self._say(0)
        super().pass_on()

    def _say(self, silent_s: float) -> None:
        with suppress(OSError):  # the subreaper is gone, and we with it; or it is stopped, and the pipe full
            os.write(self._descriptor, f"{silent_s:g}\n".encode())


@dataclass(slots=True)
class Lifetime:
    """How long a process lives, and how others see that it does."""

    recycle_limits: RecycleLimits
    retirement: Retirement
    pulse: Pulse | None = None
    is_ready: Callable[[], bool] = lambda: True
    """Celery has started. Before that no call is heard, for the process could not stop in order."""


class StatusPipe(InheritedPipe):
    """One report of one start."""

    def __init__(self) -> None:
        super().__init__(STATUS_FD)
        self._is_given = self._descriptor >= 0

    def ready(self, words: str) -> None:
        """Report that work is taken from now on: in ``words`` to a person, when no service started this process.

        Only the first report counts.
        """
        if not self._is_given:
            sys.stderr.write(f"{words}\n")
        self._report("ready")

    def failed(self, words: str) -> None:
        self._report(f"failed {' '.join(words.split())[:MAX_CHARS]}")

    def _report(self, line: str) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # the starter is gone: nobody waits for it
                os.write(descriptor, f"{line}\n".encode("utf-8", "replace"))
            os.close(descriptor)
