"""The system calls that no program in a sandbox makes: a seccomp filter as classic BPF, for x86-64 and AArch64.

A deny list, as container engines and Flatpak have one: whatever reaches into the kernel's less used parts, makes
namespaces and mounts, reads other processes, or types into a terminal. Ordinary programs do without. The kernel has the
last word with or without it; the filter keeps what a hole in the kernel would need away from untrusted code.

Pure: it makes bytes. Source: seccomp(2), ``linux/filter.h``, ``linux/seccomp.h``, the syscall tables of both machines.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from typing import Final

from soong.shared.core.value import Value

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
    steps = [(_LOAD_WORD, 0, 0, _ARCH_AT), *_unless_equal(known.audit_arch), (_LOAD_WORD, 0, 0, _NUMBER_AT)]
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
    ioctl = [_loaded(1), *_when_equal(_TERMINAL_INPUT, errno.EPERM)]
    allowed = [(_JUMP_EQUAL, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]
    socket = [_loaded(0), *allowed, _refusal(errno.EAFNOSUPPORT)]
    checks = (("clone", clone), ("ioctl", ioctl), ("socket", socket))
    steps: list[_Step] = []
    for name, check in checks:
        # The accumulator holds an argument afterwards: what is asked has ended, and the call is allowed.
        block = [*check, (_RETURN, 0, 0, ALLOW)]
        steps += [(_JUMP_EQUAL, 0, len(block), numbers[name]), *block]
    return steps


def _loaded(argument: int) -> _Step:
    """Load the low 32 bits of an argument; both machines are little-endian."""
    return (_LOAD_WORD, 0, 0, 16 + 8 * argument)


def _when_equal(values: Iterable[int], problem: int) -> list[_Step]:
    return [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), _refusal(problem))]


def _unless_equal(audit_arch: int) -> list[_Step]:
    return [(_JUMP_EQUAL, 1, 0, audit_arch), _refusal(errno.EPERM)]


def _refusal(problem: int) -> _Step:
    return (_RETURN, 0, 0, _ERRNO | problem)
