"""The Bubblewrap runner, and its filter of system calls."""

import errno
import json
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.doctor.machine import Level, check_sandbox
from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.sandbox.bubblewrap import runner as sandbox
from soong.shared.sandbox.bubblewrap.mounts import HostLayout, Mount, SandboxView, secrets_below, view_of
from soong.shared.sandbox.bubblewrap.runner import BubblewrapRunner, denial
from soong.shared.sandbox.bubblewrap.wrapped import MACHINES, BubblewrapProbe, filter_program, probe
from soong.shared.sandbox.command import ChildCommand, CommandAccess, SandboxUnavailableError
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.controls import command_runner
from tests.unit.toolsets.commands import data_of, make_commands

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/home/nobody-here"}


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without Bubblewrap: no folder of the system on PATH has it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    probe.cache_clear()
    yield
    probe.cache_clear()


@pytest.mark.spec("CMD-07.d", "CMD-07.e")
@pytest.mark.usefixtures("nowhere")
async def test_required_without_bubblewrap_runs_nothing_asks_nobody_and_says_what_to_install(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, runner=BubblewrapRunner(HostLayout(tmp_path), is_required=True))

    failure = await commands.failure("/usr/bin/touch", "made")

    assert failure.type is ErrorType.SANDBOX_DENIED
    assert "required" in failure.message
    assert "apt install bubblewrap" in failure.hint
    assert not commands.bench.gate.asked
    assert not (commands.root / "made").exists()


@pytest.mark.spec("CMD-07.d")
@pytest.mark.usefixtures("nowhere")
async def test_auto_without_bubblewrap_runs_the_command_and_says_that_nothing_confines_it(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, runner=BubblewrapRunner(HostLayout(tmp_path)))

    result = await commands.run("/usr/bin/touch", "made")

    assert (result.error, data_of(result)["sandbox"]) == (None, "none")
    assert "sandbox" not in commands.target.preview
    assert (commands.root / "made").exists()


@pytest.mark.spec("CMD-07.d")
@pytest.mark.usefixtures("nowhere")
async def test_a_bwrap_that_is_planted_on_path_is_not_the_systems(tmp_path: Path) -> None:
    planted = tmp_path / "bwrap"
    planted.write_text("#!/bin/sh\nexec true\n")
    planted.chmod(0o755)

    assert not probe().works


@pytest.mark.spec("CMD-07.d")
async def test_a_sandbox_that_cannot_be_made_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under auto: that it worked once and not now is no reason to run a command with all rights."""
    monkeypatch.setattr(sandbox, "probe", lambda: BubblewrapProbe(Path("/bin/false")))
    command = ChildCommand(("/bin/true",), os.open(tmp_path, os.O_RDONLY), tmp_path, {}, timedelta(seconds=30), 100)

    with pytest.raises(SandboxUnavailableError, match="no sandbox could be made"):
        await BubblewrapRunner(HostLayout(tmp_path)).run(command)
    os.close(command.cwd)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return load_settings(agent_home=home)


@pytest.mark.spec("CMD-07.d", "OPS-07.c")
@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(("mode", "level"), [("off", Level.OK), ("auto", Level.WARN), ("required", Level.FAIL)])
async def test_doctor_says_what_is_in_force(settings: Settings, mode: str, level: Level) -> None:
    (settings.home / "config.toml").write_text(f'[commands]\nsandbox = "{mode}"\n')

    finding = await check_sandbox(settings)

    assert finding.level is level
    assert ("install bubblewrap" in finding.hint) == (level is not Level.OK)


@pytest.mark.spec("CMD-07.d")
def test_a_sandbox_is_off_until_the_user_asks_for_one(settings: Settings) -> None:
    assert isinstance(command_runner(settings, Config()), ProcessRunner)
    assert isinstance(command_runner(settings, parse_config('[commands]\nsandbox = "auto"')), BubblewrapRunner)


@pytest.mark.spec("CMD-06.e")
@pytest.mark.parametrize(
    "text",
    ['sandbox = "on"', 'sandbox = ["auto"]', 'sandbox_network = "git"', 'sandbox_read = ["cache"]', "sandbox = true"],
)
def test_a_wrong_configuration_names_its_place(settings: Settings, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"commands\.sandbox"):
        command_runner(settings, parse_config(f"[commands]\n{text}"))


def kinds(view: SandboxView, *paths: Path) -> list[str | None]:
    return [view.kind_at(path) for path in paths]


@pytest.mark.spec("CMD-07.b")
def test_the_deepest_place_decides(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "project" / "home"
    (project / ".git" / "hooks").mkdir(parents=True)
    (home / "skills").mkdir(parents=True)
    access = CommandAccess(readable=(project,), writable=(project,))
    host = HostLayout(tmp_path / "user", own=(home,), shown=(home / "skills",))

    view = view_of(host, access, Path("/usr/bin/env"), ENVIRONMENT)

    assert kinds(view, project, project / ".git" / "index", project / ".git" / "hooks") == ["write", "write", "read"]
    assert kinds(view, home / "signing.key", home / "skills" / "x") == ["private", "read"]
    assert kinds(view, tmp_path / "user" / "x", Path("/usr/lib"), Path("/bin/sh"), Path("/srv")) == [
        *("private", "read", "read", None)
    ]


@pytest.mark.spec("CMD-07.b")
def test_files_that_others_cannot_read_are_hidden_and_folders_that_they_cannot_enter_as_a_whole(tmp_path: Path) -> None:
    for name, folder_mode, file_mode in (("open", 0o755, 0o644), ("shared", 0o755, 0o640), ("closed", 0o2770, 0o644)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.conf").write_text("password")
        (tmp_path / name / "server.conf").chmod(file_mode)
        (tmp_path / name).chmod(folder_mode)

    hidden = secrets_below(tmp_path)

    assert set(hidden) == {Mount(tmp_path / "shared" / "server.conf", "empty"), Mount(tmp_path / "closed", "private")}


def test_a_project_that_is_the_home_shows_no_key_of_the_person(tmp_path: Path) -> None:
    for name in (".ssh", ".aws", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / ".netrc").write_text("key")

    view = view_of(HostLayout(tmp_path), CommandAccess(writable=(tmp_path,)), Path("/usr/bin/env"), ENVIRONMENT)

    found = kinds(view, *(tmp_path / name for name in (".ssh", ".aws", ".netrc", "work")))
    assert found == ["private", "private", "empty", "write"]


@pytest.mark.spec("CMD-07.b")
def test_an_installation_of_the_person_is_shown_and_what_lies_beside_it_is_not(tmp_path: Path) -> None:
    node, local = tmp_path / ".nvm" / "versions" / "v20", tmp_path / ".local"
    for folder in (node / "bin", node / "lib", local / "bin", local / "lib", local / "share" / "keyrings"):
        folder.mkdir(parents=True)
    program = node / "bin" / "node"
    program.write_text("")
    environment = {**ENVIRONMENT, "PATH": f"{local}/bin:/usr/bin"}

    view = view_of(HostLayout(tmp_path), CommandAccess(), program, environment)

    assert kinds(view, node / "lib" / "x", local / "bin" / "x") == ["read", "read"]
    assert kinds(view, local / "share" / "keyrings", tmp_path / ".ssh") == ["private", "private"]


@pytest.mark.spec("CMD-07.e")
@pytest.mark.parametrize(
    ("words", "has_network", "says"),
    [
        ("touch: cannot touch '/usr/x': Read-only file system", False, "'/usr/x' is read-only in the sandbox"),
        ("OSError: [Errno 30] Read-only file system: '/etc/x'", False, "'/etc/x' is read-only in the sandbox"),
        ("curl: (6) Could not resolve host: example.org", False, "the sandbox has no network"),
        ("curl: (6) Could not resolve host: example.org", True, ""),
        ("cat: /home/me/.ssh/id: No such file or directory", False, "'/home/me/.ssh/id' is not visible in the sandbox"),
        ("cat: missing: No such file or directory", False, ""),
        ("cat: /usr/none: No such file or directory", False, ""),
        ("cat: /proc/1/mem: Permission denied", False, ""),
        ("Read-only file system\n" + "and then much more\n" * 30, False, ""),
        ("", False, ""),
    ],
)
def test_what_cannot_come_from_elsewhere_is_named(words: str, has_network: bool, says: str) -> None:
    view = replace(view_of(HostLayout(Path("/nobody")), CommandAccess(), Path("/usr/bin/env"), ENVIRONMENT))

    assert denial(words, view, has_network=has_network) == says


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


of_known_machine = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in MACHINES, reason="seccomp of a known machine"
)


@of_known_machine
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


@of_known_machine
@pytest.mark.spec("CMD-07")
@pytest.mark.parametrize("machine", MACHINES)
def test_every_jump_stays_inside_the_program_and_every_path_ends(machine: str) -> None:
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))

    assert len(steps) < 4096  # BPF_MAXINSNS
    for place, (code, when, otherwise, _) in enumerate(steps):
        if code & 0x07 == 0x05:
            assert place + 1 + max(when, otherwise) < len(steps)
    assert steps[-1][0] == 0x06


@of_known_machine
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


@of_known_machine
def test_an_unknown_machine_has_no_filter() -> None:
    assert filter_program("riscv64") == b""
