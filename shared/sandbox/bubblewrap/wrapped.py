"""One program with its arguments, wrapped into a sandbox: the argv to start instead, and the descriptors it needs."""

import contextlib
import errno
import json
import os
import platform
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox.bubblewrap.mounts import HostLayout, Mount, SandboxView, view_of
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.programs import programs_of_the_system

MAX_MEMORY_FOLDER_BYTES: Final = 2 * 1024**3
"""The maximum size of each folder in memory (home, temporary files)."""
MAX_PROCESSES: Final = 1024
"""Processes of one sandbox; the kernel counts them for each user namespace (5.14 or newer) and exempts root."""
_LIMITER: Final = Path("/usr/bin/prlimit")
_ROOT: Final = Path("/")

ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 5 << 16  # SECCOMP_RET_ERRNO; the errno is in the lower half

_LOAD_WORD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06

_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_X32_BIT: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into a terminal as if they were typed. The kernel reads 32 bits of a request."""
_FAMILIES: Final = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. Not vsock, which no network namespace holds back, packet, kernel crypto and the rest."""

_REFUSED: Final = (
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "mount_setattr", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "quotactl", "swapon", "swapoff", "acct", "syslog", "reboot"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "perf_event_open"),
    *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "open_by_handle_at", "fanotify_init", "lookup_dcookie"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "personality"),
    *("move_pages", "migrate_pages", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "nfsservctl"),
    *("iopl", "ioperm", "modify_ldt", "uselib", "create_module", "query_module", "get_kernel_syms", "vhangup"),
)
_UNKNOWN: Final = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Answered as on a kernel that has none of them: libraries then use what came before, which can be looked into."""

_COMMON: Final = {
    "clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442,
}  # fmt: skip
_X86_64: Final = _COMMON | {
    "ioctl": 16, "socket": 41, "clone": 56, "ptrace": 101, "syslog": 103, "uselib": 134, "personality": 135,
    "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163,
    "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172,
    "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
    "query_module": 178, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272,
    "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "clock_adjtime": 305,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64: Final = _COMMON | {
    "lookup_dcookie": 18, "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
    "vhangup": 58, "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "settimeofday": 170,
    "adjtimex": 171, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224,
    "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip

PROGRAM: Final = "bwrap"
INSTALL: Final = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
ISOLATION: Final = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys", "--dev", "/dev"),
)
"""No namespace of the host, no capability, its own processes and devices; the sandbox dies with its parent.

Files of /proc/sys belong to root, and a worker that is root is the same root inside; Bubblewrap leaves them writable.
"""


class WrappedCommand(Value):
    """The command to start: ``argv`` with ``descriptors`` inherited by their numbers. Its opener closes them."""

    argv: tuple[str, ...]
    descriptors: tuple[int, ...]
    view: SandboxView
    status: int

    def has_started(self) -> bool:
        """Say, once it has ended, whether the program itself was started: Bubblewrap then reports its exit code."""
        os.set_blocking(self.status, False)
        with contextlib.suppress(BlockingIOError):
            documents = os.read(self.status, 65_536).decode("utf-8", "replace").splitlines()
            return any("exit-code" in json.loads(line) for line in documents if line.startswith("{"))
        return False


class BubblewrapProbe(Value):
    """The result of a probe. ``problem`` is empty if Bubblewrap works."""

    program: Path | None = None
    problem: str = ""
    hint: str = ""
    binds_descriptors: bool = False
    """It mounts what a descriptor is open on, so that no exchanged link can put another folder in its place."""

    @property
    def works(self) -> bool:
        return not self.problem


@contextlib.contextmanager
def wrapped(
    found: BubblewrapProbe,
    host: HostLayout,
    access: CommandAccess,
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    reports: bool = True,
) -> Iterator[WrappedCommand]:
    """Wrap a program; the descriptors stay open as long as the context. With ``reports`` the context must last until
    the program has ended: Bubblewrap then reports its exit code.
    Raises: OSError, a place that it is to see cannot be opened.
    """
    view = view_of(host, access, Path(argv[0]), environment)
    with contextlib.ExitStack() as stack:
        status, told = _pipe(stack) if reports else (-1, -1)
        mounted = _Mounted(stack, by_descriptor=found.binds_descriptors)
        arguments = [str(found.program), *mounted.arguments(view), *(["--share-net"] if access.has_network else [])]
        if not any(mount.path == _ROOT for mount in view.mounts):
            arguments += ["--remount-ro", str(_ROOT)]
        arguments += ["--chdir", str(cwd if view.kind_at(cwd) else _ROOT)]
        arguments += ["--json-status-fd", str(told)] if reports else []
        descriptors = [*([told] if reports else []), *mounted.descriptors]
        if rules := filter_program():
            descriptors.append(_in_memory(rules, stack))
            arguments += ["--seccomp", str(descriptors[-1])]
        limits = (str(_LIMITER), f"--nproc={MAX_PROCESSES}", "--core=0", "--") if _LIMITER.is_file() else ()
        yield WrappedCommand((*arguments, "--", *limits, *argv), tuple(descriptors), view, status)


class _Mounted:
    """The arguments of all mounts, and the descriptors of what is mounted by one."""

    def __init__(self, stack: contextlib.ExitStack, *, by_descriptor: bool) -> None:
        self.descriptors: list[int] = []
        self._stack = stack
        self._by_descriptor = by_descriptor

    def arguments(self, view: SandboxView) -> Iterator[str]:
        """Yield the mounts in their order; processes and devices lie on the root, and below them may be projects."""
        root = [mount for mount in view.mounts if mount.path == _ROOT]
        for mount in root:
            yield from self._one(mount)
        if not root:
            for name, target in view.links.items():
                yield from ("--symlink", target, f"/{name}")
        yield from ISOLATION
        for mount in view.mounts[len(root) :]:
            yield from self._one(mount)

    def _one(self, mount: Mount) -> tuple[str, ...]:
        path = str(mount.path)
        match mount.kind:
            case "private":
                return ("--size", str(MAX_MEMORY_FOLDER_BYTES), "--tmpfs", path)
            case "empty":
                return ("--ro-bind", os.devnull, path)
            case "read" | "write":
                option, descriptor = "--ro-bind" if mount.kind == "read" else "--bind", self._opened(mount.path)
                return (f"{option}-fd", str(descriptor), path) if self._by_descriptor else (option, path, path)
            case "link":
                return ("--symlink", str(mount.target), path)

    def _opened(self, source: Path) -> int:
        """Open a place and hold it to its path: a link that was put there since leads elsewhere."""
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}") != str(source):  # noqa: PTH115  # a name, not a path
            raise OSError(errno.ELOOP, "was replaced while its sandbox was made", str(source))
        if self._by_descriptor:
            self.descriptors.append(descriptor)
        return descriptor


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _in_memory(content: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("seccomp")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Machine(Value):
    """One kind of processor: how the kernel names its calls (AUDIT_ARCH), and their numbers."""

    audit_arch: int
    numbers: dict[str, int]


MACHINES: Final = {"x86_64": Machine(0xC000003E, _X86_64), "aarch64": Machine(0xC00000B7, _AARCH64)}


def filter_program(machine: str = "") -> bytes:
    """Return the filter for a machine, this one by default, as an array of ``struct sock_filter``; empty: unknown one.
    Calls of another architecture (32 bits, x32) are refused: their numbers mean other calls.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    steps = [(_LOAD_WORD, 0, 0, _ARCH_AT), (_JUMP_EQUAL, 1, 0, known.audit_arch), _refusal(errno.EPERM)]
    steps.append((_LOAD_WORD, 0, 0, _NUMBER_AT))
    steps += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), _refusal(errno.ENOSYS)]
    for names, problem in ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for name in names:
            if name in known.numbers:
                steps += [(_JUMP_EQUAL, 0, 1, known.numbers[name]), _refusal(problem)]
    steps += _argument_checks(known.numbers)
    steps.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


_Step = tuple[int, int, int, int]


def _argument_checks(numbers: dict[str, int]) -> list[_Step]:
    clone = [_loaded(0), (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refusal(errno.EPERM)]
    ioctl = [_loaded(1)]
    for request in _TERMINAL_INPUT:
        ioctl += [(_JUMP_EQUAL, 0, 1, request), _refusal(errno.EPERM)]
    allowed = [(_JUMP_EQUAL, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]
    socket = [_loaded(0), *allowed, _refusal(errno.EAFNOSUPPORT)]
    checks = (("clone", clone), ("ioctl", ioctl), ("socket", socket))
    steps: list[_Step] = []
    for name, check in checks:
        # The accumulator holds an argument afterwards: the checks have ended, and the call is allowed.
        block = [*check, (_RETURN, 0, 0, ALLOW)]
        steps += [(_JUMP_EQUAL, 0, len(block), numbers[name]), *block]
    return steps


def _loaded(argument: int) -> _Step:
    """Load the low 32 bits of an argument; both machines are little-endian."""
    return (_LOAD_WORD, 0, 0, 16 + 8 * argument)


def _refusal(problem: int) -> _Step:
    return (_RETURN, 0, 0, _ERRNO | problem)


@lru_cache(maxsize=1)
def probe() -> BubblewrapProbe:
    """Look for it and try it; blocks for some ten milliseconds the first time."""
    found = programs_of_the_system(PROGRAM)
    if not found:
        return BubblewrapProbe(problem="there is no bwrap program in the folders of the system", hint=INSTALL)
    program = found[0]
    trial = (str(program), "--ro-bind", "/", "/", *ISOLATION, "--", "/bin/true")
    try:
        tried, known = _said(trial), _said((str(program), "--help"))
    except (OSError, subprocess.TimeoutExpired) as error:
        return BubblewrapProbe(program, f"{program} cannot be run: {error}", INSTALL)
    if tried.returncode != 0:
        words = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        hint = "allow unprivileged user namespaces here (in a container: docs/reference/sandbox.md has the options)"
        return BubblewrapProbe(program, f"{program} does not work here: {words}", hint)
    return BubblewrapProbe(program, binds_descriptors="--bind-fd" in known.stdout + known.stderr)


def _said(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timing.EXCHANGE_LIMIT_S,
        check=False,
        env={},
        stdin=subprocess.DEVNULL,
    )
