"""The command line as a user has it: real processes, a home of its own, a terminal where one is needed.

Every process that a scene starts is known by its home, so that what is left behind can be named, and ended by pid.

Commands are forked from a process that has imported everything already, models' libraries as well (tests/warm.py). In
a **warm** scene the service is too: it is there before a command starts one. Where that start is what a test is about,
its scene is not warm.
"""

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from soong.shared.core.errors import SchemaVersionError, UnavailableError
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.sandbox.subreaper import STAND_IN
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.waiting import wait_until
from tests.warm import WarmProcess, called, warm_parent

T = TypeVar("T")

LIMIT_S = 90.0
CONSOLE_SCRIPT = [str(Path(sys.executable).parent / "soong")]
SERVED = frozenset({"ask", "resume", "run"})
"""The commands that start a service where none runs."""
CLI = "soong.orchestrator.cli"
SERVICES = frozenset({CLI, "soong.orchestrator.http", "soong.worker"})
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MARK = re.compile(r"\n  > \Z")


@dataclass
class WarmCommand(WarmProcess):
    """A command in a warm process; what it writes is kept in files."""

    streams: tuple[Path, Path] = field(kw_only=True)

    def communicate(self, *, timeout: float) -> tuple[str, str]:
        """Wait for the end and return what was written. Raises: subprocess.TimeoutExpired."""
        self.wait(timeout)
        out, err = (path.read_text() for path in self.streams)
        return out, err


@dataclass
class CliHarness:
    """One home and the folder that commands are called in."""

    home: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    is_warm: bool = True
    _warm: list[WarmCommand] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            # Nowhere near the folder: rules for a home, or for a folder around one, are refused.
            "HOME": "/nonexistent",
            "SOONG_AGENT_HOME": str(self.home),
            "SOONG_WORKERS": "1",
            "SOONG_SLOTS": "4",
            "SOONG_DRAIN_S": "3",
            "SOONG_LOG_LEVEL": "info",
            "TERM": "xterm",
            **self.environment,
        }

    def plan(self, text: str, name: str = "plan.yaml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call soong, by a process that has imported already what it needs, and wait for its end."""
        self.serve(arguments[0])
        return called(CLI, arguments, env=self.env, cwd=self.folder, limit_s=LIMIT_S)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            raise AssertionError(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}{self.logs()}") from None

    def start(self, *arguments: str) -> WarmCommand:
        """Call soong and go on."""
        self.serve(arguments[0])
        return self.start_forked(*arguments)

    def on_terminal(self, arguments: Sequence[str], terminal: int, output: int) -> WarmProcess:
        """Call soong on a terminal of its own, and go on."""
        self.serve(arguments[0])
        return self._fork(arguments, output, terminal, terminal)

    def _fork(self, arguments: Sequence[str], out: int, err: int, terminal: int | None = None) -> WarmProcess:
        return warm_parent().start(
            CLI, arguments, env=self.env, cwd=self.folder, stdout=out, stderr=err, stdin=terminal
        )

    def start_forked(self, *arguments: str) -> WarmCommand:
        """Call soong, forked in any scene and without the service that it would start, and go on."""
        folder = self.home / "logs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = len(self._warm)
        streams = (folder / f"warm-{number}.out", folder / f"warm-{number}.log")
        with streams[0].open("wb") as out, streams[1].open("wb") as err:
            process = self._fork(arguments, out.fileno(), err.fileno())
        command = WarmCommand(process.parent, process.pid, streams=streams)
        self._warm.append(command)
        return command

    def up(self) -> WarmCommand:
        """Start a service that stays, as in another terminal, and return it once it is there."""
        command = self.start("up")
        self.until_up()
        return command

    def until_up(self) -> None:
        until((self.home / "service.json").exists, "the service is up", self.logs)

    def serve(self, command: str) -> None:
        """In a warm scene, start the service that this command would start itself, and wait until it is there."""
        if self.is_warm and command in SERVED and not self._has_service():
            log = self.home / "logs" / f"warm-{len(self._warm)}.log"
            service = self.start_forked("up", "--ephemeral", "--log", str(log))
            until(lambda: self._has_service() or service.poll() is not None, "a service is there", self.logs)

    def serve_with(self, module: str, folder: Path | None = None) -> None:
        """Start the service that the command for a plan with this module starts."""
        given = {"SOONG_FUNCTIONS": module, "SOONG_IMPORT_PATH": str(folder or self.folder)}
        own, self.environment = self.environment, {**self.environment, **given}
        self.serve("run")
        self.environment = own

    def _has_service(self) -> bool:
        with suppress(FileNotFoundError):
            return psutil.pid_exists(self.record()["pid"])
        return False

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "service.json").read_text()))

    def processes(self) -> list[psutil.Process]:
        """Return every living process of this home but the ones that tests call themselves."""
        # Sockets lie in a folder named after the home, wherever the scene's own environment puts it.
        runtime = load_settings(agent_home=self.home).runtime_dir.name.rpartition("-")[2]
        found, sessions = [], {command.pid for command in self._warm}
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                words = process.cmdline()
                # A worker has a session of its own, its subreaper has its service's.
                is_ours = any(runtime in word for word in words)
                is_ours = is_ours or not sessions.isdisjoint(map(os.getsid, (process.pid, process.ppid())))
                is_service = SERVICES & set(words) or words[-1:] == ["up"]
                if not is_ours and is_service:
                    is_ours = process.environ().get("SOONG_AGENT_HOME") == str(self.home)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of the service, without their subreapers."""
        found = []
        for process in self.processes():
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # it has ended since
                words = process.cmdline()
                if "soong.worker" in words and STAND_IN not in words:
                    found.append(process)
        return found

    def redis(self) -> psutil.Process:
        return next(process for process in self.processes() if "redis-server" in " ".join(process.cmdline()))

    def step_statuses(self) -> dict[str, str]:
        """Return how the steps of the newest task stand, read from the rows; empty when there is none yet."""
        task = self._newest()
        return {} if task is None else {step.step_id: str(step.status) for step in task[1]}

    def task_id(self) -> str:
        """Return the newest task's id, or nothing."""
        task = self._newest()
        return "" if task is None else task[0].id

    def until_running(self, step_id: str) -> None:
        until(lambda: self.step_statuses().get(step_id) == "running", f"{step_id} runs", self.logs)

    def _newest(self) -> tuple[Task, Sequence[Step]] | None:
        async def read(store: SqlStore) -> tuple[Task, Sequence[Step]] | None:
            tasks = await store.tasks.list_tasks(limit=1)
            return (tasks[0], await store.tasks.steps(tasks[0].id)) if tasks else None

        return self.rows(read)

    def rows(self, read: Callable[[SqlStore], Awaitable[T]]) -> T | None:
        """Return what is read from the database of the home; None while it is being made."""

        async def opened() -> T:
            store = await open_store(f"sqlite:///{self.home}/soong.db", migrate=False)
            try:
                return await read(store)
            finally:
                await store.close()

        with suppress(UnavailableError, SchemaVersionError):
            return asyncio.run(opened()) if (self.home / "soong.db").exists() else None
        return None

    def logs(self) -> str:
        return "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in (self.home / "logs").glob("*.log"))

    def assert_nothing_left(self) -> None:
        until(lambda: not self.processes(), "no process of the home is left", self.logs)

    def close(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def interrupted(command: WarmCommand) -> None:
    """Interrupt a command, and wait for its end."""
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=LIMIT_S)


def writes(path: str, content: str = "hello") -> str:
    """Return a plan whose step ``write`` writes one file."""
    calls = json.dumps([{"call": "code.write_file", "with": {"path": path, "content": content}}])
    step = f"{{id: write, allowed_tools: [code.write_file], script: builtin.calls, inputs: {{calls: {calls}}}}}"
    return f"title: A note\nsteps:\n  - {step}\n"


@contextmanager
def scene(*, home: str = "home", is_warm: bool = True, models: str = "") -> Iterator[CliHarness]:
    """Make a scene below a short temporary folder, and leave nothing of it. Its agents may choose these ``models``."""
    folder = Path(tempfile.mkdtemp(prefix="soong-cli-"))
    one = CliHarness(folder / home, folder, is_warm=is_warm)
    if models:
        one.home.mkdir(parents=True)
        (one.home / "config.toml").write_text(permitting(models))
    try:
        yield one
    finally:
        one.close()


def permitting(*models: str) -> str:
    """Return the part of a configuration that has agents choose among models."""
    return f"[agents]\nproject_models = {json.dumps(models)}\n"


def until(condition: Callable[[], object], what: str, more: Callable[[], str] = str, limit_s: float = LIMIT_S) -> None:
    """Wait until a condition of other processes holds."""
    wait_until(condition, limit_s, lambda: f"{what}{more()}", every_s=0.1)


class Terminal:
    """A command on a terminal of its own: what it shows, and keys to press. ``output`` takes its standard output."""

    def __init__(self, scene_: CliHarness, *arguments: str, output: Path | None = None) -> None:
        self.shown = ""
        self._pressed_at = 0
        self._descriptor, end = pty.openpty()
        standard_output = end if output is None else os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        self._command = scene_.on_terminal(arguments, end, standard_output)
        for descriptor in {end, standard_output}:
            os.close(descriptor)
        self.pid = self._command.pid
        os.set_blocking(self._descriptor, False)

    def expect(self, text: str) -> None:
        until(lambda: self.read() and text in self.shown, f"{text!r} is shown", lambda: f"\n{self.shown}")

    def answer(self, keys: str) -> None:
        """Press keys at a mark that came after the last ones: what is typed before it is discarded."""
        until(self.is_at_mark, "the mark of a prompt", lambda: f"\n{self.shown}")
        self.press(keys)

    def is_at_mark(self) -> bool:
        """Say whether a prompt waits for keys, and has not been given any."""
        return self.read() and _MARK.search(self.text, self._pressed_at) is not None

    def press(self, keys: str) -> None:
        self._pressed_at = len(self.text)
        os.write(self._descriptor, keys.encode())

    @property
    def text(self) -> str:
        """What was shown, without escape sequences."""
        return _ESCAPES.sub("", self.shown)

    def wait(self) -> int:
        """Return the exit code."""
        try:
            until(lambda: self.read() and self._command.poll() is not None, "its end", lambda: f"\n{self.shown}")
        finally:
            self._command.kill()
        self.read()
        os.close(self._descriptor)
        return self._command.wait()

    def read(self) -> bool:
        with suppress(BlockingIOError, OSError):
            while data := os.read(self._descriptor, 65536):
                self.shown += data.decode(errors="replace")
        return True
