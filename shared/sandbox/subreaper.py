"""Runs one program and ends its family: ``python -I -S subreaper.py CONTROL STATUS LIMIT_S PROGRAM ARG…`` (Linux).

A process group is not enough: ``setsid`` leaves it, and init adopts a double fork. This process is the *subreaper* of
all that comes from the program, so every orphan becomes its own child and none gets out of its sight. It waits for one
byte on CONTROL before it starts the program. When the program ends, when CONTROL is closed (its owner has let go, or
was killed), on SIGTERM, or after LIMIT_S, it freezes and kills every descendant until the kernel reports no child. Only
then it writes the end of its report to STATUS and ends itself.

The report has lines ``started PID``, then ``ended CODE LEFT``, or ``failed ERRNO`` when the program could not be
started. CODE is negative for a signal, LEFT counts descendants that could not be killed (another user's, or stuck in
the kernel).

The limits: the subreaper runs as the same user as the program, which can kill it. Then the kernel kills the program
itself, its owner kills the program's group, and only processes that had left that group before live on. A set-user-ID
program is beyond its reach. A process that another service starts for the program (``at``, ``systemd-run``, a container
daemon) is not a descendant. Against these only an operating system sandbox helps.

The subreaper has exactly the program's environment and working directory; there is no secret in it to read. It imports
little (no typing, no enum, no collections): its start is what a command costs more. It marks itself and with that the
entire family (:func:`mark_family`).

``subreaper.py stand-in CONTROL STATUS GRACE_S PROGRAM ARG…`` keeps a server program: a worker. It starts the program
at once, forwards signals to it, and ends as the program ended: with its exit code or by its signal. The family ends
with the program; GRACE_S after CONTROL was closed; and at once on ``END_NOW``. The program gets CONTROL too and may
watch it, and STATUS, to report on its own. CONTROL and STATUS may be -1: nobody to watch, nobody to report to.

``subreaper.py adopt CONTROL STATUS GRACE_S PID PULSE …`` is what a process that has forked such a program becomes
(:func:`keep`): the stand-in of its child PID, whose signs of life it reads from PULSE.

The program may write lines to the pipe that ``SOONG_PULSE_FD`` names: for how many seconds it may be silent from then
on, 0 for any time. One that is silent for longer hangs: it gets SIGABRT, at which Python writes its stacks, then
SIGKILL; the report has a line ``hung SECONDS``. The subreaper needs no lock of the program's interpreter for that. Time
in which the program or the subreaper itself was stopped, frozen or without a CPU does not count.
"""

import errno
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # as in typing, which is not imported
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
else:
    import _signal as signal  # without the enumerations of the module around it: 1 MiB and a fifth of our start

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
RLIMIT_LOCKS = 10
RUN_MARK = 1 << 62
"""The finite hard limit on file locks by which a process of a run is known (:mod:`soong.shared.sandbox.family`)."""

SWEEP_LIMIT_S = 8.0
"""How long the family is fought; a process that is left then cannot be killed by us."""
FREEZE_ROUNDS = 64
_LOOK_EVERY_S = 0.02

STAND_IN = "stand-in"
ADOPT = "adopt"
END_NOW = signal.SIGUSR2
"""Tells a stand-in to end its program and the entire family at once."""
PULSE_FD = "SOONG_PULSE_FD"
LOOK_S = 1.0
"""Between two looks at a program that has to give a sign of life."""
ABORT_S = 3.0
"""For the stacks of a program that hangs."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)


def main(arguments: list[str]) -> int:
    if arguments[0] == STAND_IN:
        return stand_in(int(arguments[1]), int(arguments[2]), float(arguments[3]), arguments[4:])
    if arguments[0] == ADOPT:
        control, status, program, reading = (int(arguments[place]) for place in (1, 2, 4, 5))
        return _adopt(control, status, float(arguments[3]), program, reading)
    control, status, limit_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    if os.read(control, 1) == b"":
        return 1  # let go before anything began
    family = ProcessTree(_woken_by(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        mark_family()
        family.start(arguments[3:], status)
    except OSError as error:
        _say(status, f"failed {error.errno or errno.EIO}")
        return 1
    _let_go_of_output()
    family.wait(control, limit_s)
    left = family.end()
    _say(status, f"ended {-signal.SIGKILL if family.code is None else family.code} {left}")
    return 0


def stand_in(control: int, status: int, grace_s: float, argv: list[str]) -> int:
    """Run between a serving program and its parent; return the exit code when no signal ended it."""
    family, pulse = ProcessTree(_woken_by(signal.SIGCHLD, END_NOW, *_FORWARDED)), PulseMonitor.opened()
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        mark_family()
        family.start(argv, status, {PULSE_FD.encode(): str(pulse.writing).encode()})
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started: {error.strerror}\n")
        return 127 if error.errno == errno.ENOENT else 126
    os.close(pulse.writing)
    return _keep(family, pulse, control, status, grace_s)


def keep(
    program: "Callable[[int], None]",
    control: int,
    status: int,
    grace_s: float,
    name: str,
    environment: "Mapping[str, str]",
) -> None:
    """Fork a program and become its stand-in: an interpreter with nothing but this module, and this environment.

    ``program`` runs in the child; it gets the descriptor for signs of life. It may return by an exception alone, which
    then is raised here, in that child. The caller has left behind what the family must not have: descriptors, threads.
    Raises: OSError, the interpreter cannot be started; the kernel ends the child with this process.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # the kernel keeps it, the mark and the child across execve
    mark_family()
    pulse = PulseMonitor.opened()
    # Signals that come while there is nobody to take them wait for the interpreter that follows.
    signal.pthread_sigmask(signal.SIG_BLOCK, {END_NOW, *_FORWARDED})
    family = ProcessTree(-1)
    family.fork(lambda: program(pulse.writing), status)
    os.close(pulse.writing)
    for descriptor in {control, status, pulse.reading} - {-1}:
        os.set_inheritable(descriptor, True)
    facts = (control, status, grace_s, family.program, pulse.reading, name)
    os.execve(  # noqa: S606  # an argv, no shell
        sys.executable, [sys.executable, "-I", "-S", __file__, ADOPT, *map(str, facts)], environment
    )


def _adopt(control: int, status: int, grace_s: float, program: int, reading: int) -> int:
    """Continue as the stand-in of a child that was forked before this interpreter began."""
    for descriptor in {control, status, reading} - {-1}:
        os.set_inheritable(descriptor, False)
    family = ProcessTree(_woken_by(signal.SIGCHLD, END_NOW, *_FORWARDED), program)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return _keep(family, PulseMonitor(reading), control, status, grace_s)


def _keep(family: "ProcessTree", pulse: "PulseMonitor", control: int, status: int, grace_s: float) -> int:
    _let_go_of_output()
    if family.serve(control, grace_s, pulse):
        _say(status, f"hung {pulse.allowed_s:g}")
        family.abort()
    family.end()
    return _end_as(-signal.SIGKILL if family.code is None else family.code)


def mark_family() -> None:
    """Mark this process and all that it starts; one that is marked already stays so."""
    with _Suppressed(OSError, ValueError):  # a kernel without that limit: `soong doctor` reports the loss
        if resource.getrlimit(RLIMIT_LOCKS)[1] == resource.RLIM_INFINITY:
            resource.setrlimit(RLIMIT_LOCKS, (RUN_MARK, RUN_MARK))


class ProcessTree:
    """The program and all that comes from it. ``code`` is the program's own end, None while it lives."""

    def __init__(self, wake: int, program: int = 0) -> None:
        self.program = program
        self.code: int | None = None
        self._wake = wake

    def start(self, argv: list[str], status: int, more: "dict[bytes, bytes] | None" = None) -> None:
        """Start the program in a session of its own, so without a terminal, with ``more`` in its environment. Its id is
        reported before it can do anything: it may kill us first of all.
        Raises: OSError, it cannot be started.
        """
        environment = {**_given_environment(), **(more or {})}
        heard, told = os.pipe()  # closed by a successful exec
        subreaper = os.getpid()
        self.program = os.fork()
        if self.program == 0:
            _become(argv, environment, subreaper, status, told)
        os.close(told)
        problem = os.read(heard, 16)
        os.close(heard)
        if problem:
            os.waitpid(self.program, 0)
            raise OSError(int(problem), os.strerror(int(problem)), argv[0])

    def fork(self, program: "Callable[[], None]", status: int) -> None:
        """Like :meth:`start`, with a function of this process as the program."""
        subreaper = os.getpid()
        self.program = os.fork()
        if self.program == 0:
            _leave_subreaper(subreaper, status)
            program()

    def wait(self, control: int, limit_s: float) -> None:
        """Wait for the program's end, for the owner to let go, for a signal to end, or for the time."""
        poll, until = select.poll(), time.monotonic() + limit_s
        poll.register(control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            self.reap()
            left_s = until - time.monotonic()
            if self.code is not None or left_s <= 0:
                return
            for descriptor, _event in poll.poll(min(left_s, 3600.0) * 1000):
                if descriptor == control or set(os.read(self._wake, 512)) != {signal.SIGCHLD}:
                    return

    def serve(self, control: int, grace_s: float, pulse: "PulseMonitor") -> bool:
        """Forward signals until the program has ended, is to end now, or the grace after CONTROL's end is over. Return
        True at once when the program hangs.
        """
        poll, until = _poll_of(self._wake, control, pulse.reading), None
        while True:
            self.reap()
            left_s = 3600.0 if until is None else until - time.monotonic()
            if self.code is not None or left_s <= 0:
                return False
            for descriptor, _event in poll.poll(min(left_s, pulse.look_s) * 1000):
                if descriptor == self._wake:
                    if self._forward(os.read(self._wake, 512)):
                        return False
                elif descriptor == control:
                    poll.unregister(control)
                    until = time.monotonic() + grace_s
                elif not pulse.hear():
                    poll.unregister(descriptor)
            if pulse.is_overdue(self.program):
                return True

    def abort(self) -> None:
        """Let the program write where it hangs, and end it."""
        _signal(self.program, signal.SIGABRT)
        until = time.monotonic() + ABORT_S
        while self.reap() and self.code is None and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)

    def _forward(self, numbers: bytes) -> bool:
        """Hand signals on to the program; say whether one of them asks for the end."""
        for number in numbers:
            if number == END_NOW:
                return True
            if number != signal.SIGCHLD:
                _signal(self.program, number)
        return False

    def reap(self) -> bool:
        """Take note of every child that has ended; say whether any is left, grown or adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.program:
                self.code = os.waitstatus_to_exitcode(status)

    def end(self) -> int:
        """Kill every descendant until none is left; return how many could not be killed. A subreaper without a child
        has no descendant at all: a process that loses its parent becomes its child.
        """
        until = time.monotonic() + SWEEP_LIMIT_S
        while self.reap():
            members = freeze(os.getpid())
            if time.monotonic() > until:
                return len(members)
            for pid in members:
                _signal(pid, signal.SIGKILL)
            if select.select([self._wake], [], [], _LOOK_EVERY_S)[0]:
                os.read(self._wake, 512)
        return 0


class PulseMonitor:
    """The signs of life of the program. ``allowed_s``: how long it may be silent; 0 as long as it likes. ``reading``
    and ``writing`` are the ends of a pipe; the second is the program's, and closed here once it has it.
    """

    def __init__(self, reading: int, writing: int = -1) -> None:
        self.reading, self.writing = reading, writing
        self.allowed_s = 0.0
        self._silent_s = 0.0
        self._looked_at = time.monotonic()
        self._threads: dict[str, SchedulingDelay] = {}

    @classmethod
    def opened(cls) -> "PulseMonitor":
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        return cls(reading, writing)

    @property
    def look_s(self) -> float:
        return min(LOOK_S, self.allowed_s / 4) if self.allowed_s else 3600.0

    def hear(self) -> bool:
        """Take a sign of life; False when none will come any more."""
        said = os.read(self.reading, 4096)
        if said.endswith(b"\n"):
            with _Suppressed(ValueError):  # a program of the user's has written there
                self.allowed_s = float(said.split()[-1])
        if not said:
            self.allowed_s = 0.0
        self._silent_s, self._looked_at = 0.0, time.monotonic()
        self._threads.clear()
        return bool(said)

    def is_overdue(self, program: int) -> bool:
        """Say whether the program has been silent for too long, of the time in which it could have given a sign."""
        now = time.monotonic()
        # The rest of a longer gap is ours: we were stopped or got no CPU, and so, perhaps, did the program.
        passed_s, self._looked_at = min(now - self._looked_at, 2 * self.look_s), now
        if not self.allowed_s or _state_of(str(program)) in (b"T", b"t"):
            return False
        self._silent_s += passed_s
        if self._silent_s <= self.allowed_s / 4:
            return False
        return self._silent_s - self._starved_s(program, passed_s) > self.allowed_s

    def _starved_s(self, program: int, passed_s: float) -> float:
        """Return the longest time for which a thread of the program has waited for a CPU since it fell silent."""
        longest_s = 0.0
        for thread in _entries(f"/proc/{program}/task"):
            place = f"{program}/task/{thread}"
            counts = _content(f"/proc/{place}/schedstat").split()
            if len(counts) == 3:
                waiting = self._threads.setdefault(thread, SchedulingDelay(int(counts[1])))
                longest_s = max(longest_s, waiting.seconds(counts, _state_of(place) == b"R", passed_s))
        return longest_s


class SchedulingDelay:
    """How long a thread has waited for a CPU. The kernel counts that, but only once the thread gets one."""

    def __init__(self, delay_ns: int) -> None:
        self._first_ns = delay_ns
        self._counts: list[bytes] = []
        self._pending_s = 0.0

    def seconds(self, counts: list[bytes], is_runnable: bool, passed_s: float) -> float:
        """Return the sum; ``counts`` are the thread's time on a CPU, its time of waiting, and how often it got one."""
        self._pending_s = self._pending_s + passed_s if is_runnable and counts == self._counts else 0.0
        self._counts = counts
        return (int(counts[1]) - self._first_ns) / 1e9 + self._pending_s


def end_own_descendants() -> None:
    """Kill and reap what this process has started and what that has started, for as long as a subreaper would try."""
    until = time.monotonic() + SWEEP_LIMIT_S
    while time.monotonic() < until:
        for pid in freeze(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_LOOK_EVERY_S)
        except ChildProcessError:
            return


def freeze(root: int) -> list[int]:
    """Stop every descendant of a process and return them.

    Each is stopped before its children are looked for: a stopped process starts nothing and reaps nothing, so it cannot
    outrun us and its children's ids stay theirs. Repeated until a round finds nobody new.
    """
    known: set[int] = set()
    for _ in range(FREEZE_ROUNDS):
        members: list[int] = []
        to_look_at = [root]
        while to_look_at:
            for child in children(to_look_at.pop()):
                _signal(child, signal.SIGSTOP)
                members.append(child)
                to_look_at.append(child)
        if known.issuperset(members):
            return members
        known.update(members)
    return list(known)


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads; none for one that is gone."""
    if not os.access(f"/proc/self/task/{os.getpid()}/children", os.R_OK):
        return children_by_scan(pid)
    found: list[int] = []
    for thread in _entries(f"/proc/{pid}/task"):
        found += map(int, _content(f"/proc/{pid}/task/{thread}/children").split())
    return found


def children_by_scan(pid: int) -> list[int]:
    """Like :func:`children`, on a kernel that does not list them: by asking every process for its parent."""
    return [int(name) for name in _entries("/proc") if name.isdigit() and _parent_of(name) == pid]


def _parent_of(pid: str) -> int:
    words = _stat(pid)
    return int(words[1]) if len(words) > 1 else 0


def _state_of(place: str) -> bytes:
    return next(iter(_stat(place)), b"")


def _stat(place: str) -> list[bytes]:
    """Return state, parent and what follows; the name in parentheses before them may hold anything."""
    return _content(f"/proc/{place}/stat").rpartition(b")")[2].split()


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # pathlib would double the time that a subreaper takes to start
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # that process or thread has ended


def _become(argv: list[str], environment: dict[bytes, bytes], subreaper: int, status: int, told: int) -> None:
    """In the new child: leave the subreaper's session and become the program. Never returns."""
    try:
        _leave_subreaper(subreaper, status)
        os.execve(argv[0], argv, environment)  # noqa: S606  # an argv, no shell
    except OSError as error:
        os.write(told, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(127)


def _leave_subreaper(subreaper: int, status: int) -> None:
    """In the new child: begin a session that ends with the subreaper, without its signals, and report it."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != subreaper:
        os._exit(127)  # it died before the kernel was asked
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _say(status, f"started {os.getpid()}")


def _given_environment() -> dict[bytes, bytes]:
    # Not os.environ: Python may have set LC_CTYPE in it for itself.
    entries = _content("/proc/self/environ").split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _poll_of(*descriptors: int) -> select.poll:
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    return poll


def _woken_by(*signals: int) -> int:
    """Turn signals into bytes on a pipe and return its end for reading."""
    wake, waker = os.pipe()
    for descriptor in (wake, waker):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return wake


def _let_go_of_output() -> None:
    """Keep no end of the program's pipes open: its reader must see their end, its writer that nobody reads."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _end_as(code: int) -> int:
    """End by the signal that ended the program; return its exit code, or a shell's word for a signal."""
    if code >= 0:
        return code
    number = -code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    signal.set_wakeup_fd(-1)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a container does not end by a signal


def _say(status: int, line: str) -> None:
    if status < 0:
        return
    with _Suppressed(BrokenPipeError):  # the owner is gone; there is nobody to tell
        os.write(status, f"{line}\n".encode())


def _signal(pid: int, number: int) -> None:
    with _Suppressed(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class _Suppressed:
    """As contextlib.suppress, which would import the collections."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


def _prctl(option: int, value: int) -> None:
    import ctypes  # one that adopts does without

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
