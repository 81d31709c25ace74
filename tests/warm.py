"""Processes of ours that begin with everything imported."""

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import soong
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
IMPORTED: Final = (
    "psycopg", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite", "pydantic_ai.models.openai",
    "pydantic_ai.providers.anthropic", "openai.resources", "genai_prices.data", "jsonschema", "celery.apps.worker",
    "celery.concurrency.thread", "celery.fixups.django", "kombu.transport.redis", "anyio._backends._asyncio",
    "uvicorn.lifespan.off", "cryptography.hazmat.primitives.serialization", "smtplib", "webbrowser", "tests.answering",
)  # fmt: skip
"""What modules of ours import when they need it."""
MESSAGE_BYTES: Final = 1 << 20
MOST_DESCRIPTORS: Final = 8
OUT_OF_THE_WAY: Final = 200
"""Descriptors are taken there before each goes to the number that the process is to have it under."""

PROGRAM: Final = """#!{python} -IS
import json, os, select, signal, socket, sys

signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the forked process
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as parent:
    parent.connect({address!r})
    wanted = dict(module={module!r}, argv=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd())
    socket.send_fds(parent, [json.dumps(wanted | dict(targets=[0, 1, 2])).encode()], [0, 1, 2])
    pid = json.loads(parent.recv(100))["pid"]
    select.select([os.pidfd_open(pid)], [], [])
    parent.send(json.dumps(dict(poll=pid)).encode())
    sys.exit(os.waitstatus_to_exitcode(json.loads(parent.recv(100))["status"]))
"""


@dataclass(slots=True)
class WarmProcess:
    """A forked process, with what tests use of :class:`subprocess.Popen`."""

    parent: "WarmParent"
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            status = self.parent.ask({"poll": self.pid})["status"]
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # another thread has waited for it
                _until_ended(self.pid, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _until_ended(pid: int, timeout_s: float | None) -> None:
    """Raises: ProcessLookupError."""
    watch = os.pidfd_open(pid)
    try:
        ended = select.poll()
        ended.register(watch, select.POLLIN)
        ended.poll(None if timeout_s is None else timeout_s * 1000)
    finally:
        os.close(watch)


@dataclass(slots=True)
class WarmParent:
    """The way to the parent that the processes of a test run share; for any thread."""

    channel: socket.socket
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        stdin: int | None = None,
    ) -> WarmProcess:
        """Run a module in a process of its own, which reads nothing but ``stdin``, its terminal if it is one, and has
        ``pass_fds`` under the same numbers.
        """
        given = {1: stdout, 2: stderr, **{number: number for number in pass_fds}}
        if stdin is not None:
            given[0] = stdin
        wanted = {"module": module, "argv": list(arguments), "env": dict(env), "cwd": str(cwd), "targets": list(given)}
        return WarmProcess(self, self.ask(wanted, list(given.values()))["pid"])

    def ask(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._asking:
            socket.send_fds(self.channel, [json.dumps(request).encode()], descriptors)
            answer = self.channel.recv(MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the warm parent has ended")
        return dict(json.loads(answer))


@functools.cache
def warm_parent() -> WarmParent:
    """Return the parent of warm processes of this test run. It ends when the last process that asked for it does."""
    run = os.environ.get("TEST_RUN", f"{os.getpid()}")
    address = f"\0soong-warm-{run}"
    # Where another process of the run has bound it, there is a parent.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, suppress(OSError):
        listener.bind(address)
        listener.listen()
        listener.set_inheritable(True)
        command = [sys.executable, "-P", "-m", "tests.warm", str(listener.fileno())]
        nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        starter = os.posix_spawn(sys.executable, command, {**os.environ, "PYTHONPATH": str(ROOT)}, file_actions=nothing)
        os.waitpid(starter, 0)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wait_until(lambda: channel.connect_ex(address) == 0, 1.0, lambda: "the warm parent listens")
    assert _is_ours(channel), "another user has bound the address"
    atexit.register(channel.close)
    return WarmParent(channel)


def _is_ours(channel: socket.socket) -> bool:
    """Say whether the peer runs as our user: an abstract address has no permissions of its own."""
    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", peer)[1] == os.getuid())


def called(
    module: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a module to its end, as :func:`subprocess.run` does with captured text. Raises: subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = warm_parent().start(module, arguments, env=env, cwd=cwd, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(limit_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


def warm_program(folder: Path, module: str = "soong.orchestrator.cli") -> Path:
    """Write a module as a program for others to start: it is forked, and killed with that program."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "soong"
    address = warm_parent().channel.getpeername()
    program.write_text(PROGRAM.format(python=sys.executable, address=address, module=module))
    program.chmod(0o700)
    return program


# -- the parent
def main(listener_number: int) -> None:
    """Fork until nobody is there any more; in a child, run what was asked for."""
    if os.fork():
        os._exit(0)  # nobody's child: tests look at what theirs are
    os.setsid()  # Ctrl-C is for the tests, and this ends after them
    for name in (*_own_modules(), *IMPORTED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    with ExitStack() as channels:
        child = _serve(channels.enter_context(socket.socket(fileno=listener_number)), channels)
    if child is not None:
        _become(*child)


def _own_modules() -> Iterator[str]:
    """Yield the names of our modules, without programs and migrations."""
    for module in pkgutil.walk_packages(soong.__path__, "soong."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            yield module.name


def _serve(listener: socket.socket, opened: ExitStack) -> tuple[dict[str, Any], list[int]] | None:
    """Return None when the last client has gone; in a child, what it was asked to be and its descriptors."""
    ended: dict[int, int] = {}
    clients: dict[int, socket.socket] = {}
    waiting, has_served = [listener], False
    while len(waiting) > 1 or not has_served:
        ready, _, _ = select.select(waiting, [], [])
        if listener in ready and _is_ours(channel := opened.enter_context(listener.accept()[0])):
            waiting.append(channel)
            has_served = True
        for channel in set(ready) - {listener}:
            data, descriptors = b"", list[int]()
            with suppress(ConnectionResetError):
                data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not data:
                waiting.remove(channel)
                for pid, client in clients.items():
                    if client is channel and _status(pid, ended) is None:
                        os.kill(pid, signal.SIGKILL)  # left by a client that was killed itself
                continue
            request = json.loads(data)
            if "poll" in request:
                channel.send(json.dumps({"status": _status(request["poll"], ended)}).encode())
                continue
            pid = os.fork()
            if not pid:
                return request, descriptors
            ended.pop(pid, None)
            clients[pid] = channel
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(json.dumps({"pid": pid}).encode())
    return None


def _status(pid: int, ended: dict[int, int]) -> int | None:
    """Return how a child ended, None while it runs. Two threads may wait for one child: both get its status."""
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        ended[pid] = status
    return ended[pid]


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    os.setsid()
    # Beyond each number that is wanted: one that is there already would be closed with its copy.
    beyond = max(OUT_OF_THE_WAY, *request["targets"]) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, beyond) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, request["targets"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if 0 in request["targets"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry and entry not in sys.path]
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        # Anew: a stream remembers whether its descriptor could be sought in, and here it may be a terminal.
        stream = open(number, mode, encoding="utf-8", buffering=1 if os.isatty(number) else -1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.argv = [request["module"], *request["argv"]]
    sys.orig_argv = [sys.executable, "-P", "-m", *sys.argv]  # by which a process starts itself anew
    code: object = None
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    _end(code)


def _end(code: object) -> NoReturn:
    """End as an interpreter does, but for taking its modules apart, which would copy each page that is shared."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
