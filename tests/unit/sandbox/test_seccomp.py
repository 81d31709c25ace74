"""The seccomp filter does what it says: loaded into a process of its own, without Bubblewrap."""

import errno
import json
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from soong.shared.sandbox.bubblewrap.wrapped import MACHINES, filter_program

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in MACHINES, reason="seccomp of a known machine"
)

CALLS = """
import ctypes, fcntl, json, os, pty, socket, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
rules = bytes.fromhex(sys.stdin.read())
code = ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules) // 8, ctypes.addressof(code)))
master, slave = pty.openpty()
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0

def call(number, *arguments):
    ctypes.set_errno(0)
    return 0 if libc.syscall(number, *arguments) >= 0 else ctypes.get_errno()

def attempt(what, *arguments):
    try:
        what(*arguments)
        return 0
    except OSError as error:
        return error.errno

numbers = json.loads(sys.argv[1])
print(json.dumps({
    "ptrace": call(numbers["ptrace"], 0, 0, 0, 0),
    "keyctl": call(numbers["keyctl"], 0, -3, 0),
    "unshare": call(numbers["unshare"], 0x10000000),
    "mount": call(numbers["mount"], 0, 0, 0, 0, 0),
    "bpf": call(numbers["bpf"], 0, 0, 0),
    "io_uring_setup": call(numbers["io_uring_setup"], 1, 0),
    "clone3": call(numbers["clone3"], 0, 0),
    "clone_new_user": call(numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0),
    "TIOCSTI": attempt(fcntl.ioctl, slave, 0x5412, b"x"),
    "TIOCSTI_high": call(numbers["ioctl"], slave, ctypes.c_ulong(0x100005412), b"x"),
    "TIOCLINUX": attempt(fcntl.ioctl, slave, 0x541C, b"x"),
    "other_ioctl": attempt(fcntl.ioctl, slave, 0x5413, b"x" * 8),
    "vsock": attempt(socket.socket, 40, socket.SOCK_STREAM),
    "alg": attempt(socket.socket, 38, socket.SOCK_SEQPACKET),
    "unix": attempt(socket.socket, socket.AF_UNIX),
    "inet6": attempt(socket.socket, socket.AF_INET6),
    "thread": attempt(threading.Thread(target=int).start),
    "process": subprocess.run(["/bin/true"]).returncode,
}))
"""

REFUSED = ("ptrace", "keyctl", "unshare", "mount", "bpf", "clone_new_user", "TIOCSTI", "TIOCSTI_high", "TIOCLINUX")


@pytest.mark.spec("CMD-07")
def test_what_the_filter_names_is_refused_and_ordinary_programs_run() -> None:
    numbers = MACHINES[platform.machine()].numbers
    argv = [sys.executable, "-I", "-c", CALLS, json.dumps(numbers)]
    done = subprocess.run(argv, input=filter_program().hex(), capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {name: said[name] for name in REFUSED} == dict.fromkeys(REFUSED, errno.EPERM)
    assert (said["io_uring_setup"], said["clone3"]) == (errno.ENOSYS, errno.ENOSYS)
    assert (said["vsock"], said["alg"]) == (errno.EAFNOSUPPORT, errno.EAFNOSUPPORT)
    assert {said[name] for name in ("other_ioctl", "unix", "inet6", "thread", "process")} == {0}


@pytest.mark.spec("CMD-07")
@pytest.mark.parametrize("machine", MACHINES)
def test_every_jump_stays_inside_the_program_and_every_path_ends(machine: str) -> None:
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))

    assert len(steps) < 4096  # BPF_MAXINSNS
    for place, (code, when, otherwise, _) in enumerate(steps):
        if code & 0x07 == 0x05:
            assert place + 1 + max(when, otherwise) < len(steps)
    assert steps[-1][0] == 0x06


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip(f"{header} is not installed")
    text = Path(header).read_text(encoding="ascii")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)}

    numbers = MACHINES[machine].numbers

    assert {name: found[name] for name in numbers if name in found} == {
        name: number for name, number in numbers.items() if name in found
    }
    assert len([name for name in numbers if name in found]) > 40


def test_an_unknown_machine_has_no_filter() -> None:
    assert filter_program("riscv64") == b""
