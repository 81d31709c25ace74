"""One agent's process and the session in it: started, talked to, and ended with all that it started."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import acp
from acp import RequestError, schema
from msgspec.structs import replace
from pydantic import ValidationError

from soong.shared.agents.acp_agents import RUN_COMMAND, WRITE_FILE, AcpAgent
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandAccess, CommandRunner, DuplexProcess, SandboxUnavailableError
from soong.shared.sandbox.programs import untrusted_folders
from soong.shared.tools.definition import RunDirs, access_of
from soong.shared.tools.result import ErrorType
from soong.worker.acp.client import AcpClient

_ERROR_CHARS: Final = 1_000

MAX_GARBAGE_LINES: Final = 100
MAX_BYTES: Final = 512 * 1024 * 1024
"""The most for all messages of a run."""


class AgentFailedError(Exception):
    """The agent cannot continue; the message is the reason. ``type`` is that of the step's error."""

    def __init__(self, message: str, type: str = "agent_failed", *, is_retryable: bool = True) -> None:
        super().__init__(message)
        self.type = type
        self.is_retryable = is_retryable


class AgentProgram(Value):
    """The process to start: an absolute program, its arguments, its full environment, and its access in a sandbox."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    access: CommandAccess

    @classmethod
    def of(cls, agent: AcpAgent, run_dirs: RunDirs, tools: Collection[str]) -> "AgentProgram":
        """Find it, for a run with these tools. Nothing in a folder that the run can write is taken for it.
        Raises: InvalidConfigError, this machine does not have it; the message names the way to get it.
        """
        program, env = agent.program(untrusted_folders(run_dirs))
        for file in agent.readable:
            if not file.is_file():  # the agent may pass over it without a word, and ask for less
                raise InvalidConfigError(f"the agent 'acp:{agent.name}' cannot be started here: {file} is not a file")
        access = program_access(agent, tools, run_dirs)
        argv = (str(program), *agent.command[1:], *agent.arguments)
        return cls(argv, env, run_dirs.run_dir / "workspace", access)


@dataclass(slots=True)
class ProcessTransport:
    """One process's. ``heard`` is called for each message; ``failed`` once, with the error."""

    process: DuplexProcess
    heard: Callable[[], object]
    failed: Callable[[AgentFailedError], object]
    room: asyncio.Event
    """Is set while the client takes more requests."""
    is_mute: bool = False
    """Nothing is sent any more: the process is being ended, and would take a message for an answer."""
    _garbage: int = 0
    _bytes: int = 0

    async def send(self, message: dict[str, Any]) -> None:
        """Raises: ConnectionError, when the process is gone."""
        if self.is_mute:
            return
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        self.process.input.write(line)
        await self.process.input.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end, and when the process does not keep to the protocol."""
        try:
            return await self._next()
        except AgentFailedError as error:
            self.failed(error)
            return None

    async def close(self) -> None:
        """The process is ended by the run that started it."""

    async def _next(self) -> dict[str, Any] | None:
        while True:
            # The SDK begins a task for each message: those before it run first, and no flood piles up.
            await asyncio.sleep(0)
            await self.room.wait()
            try:
                line = await self.process.output.readline()
            except ValueError as error:
                raise AgentFailedError(f"it sent a message that is too long: {error}", "agent_protocol") from None
            if not line:
                return None
            self._bytes += len(line)
            if self._bytes > MAX_BYTES:
                raise AgentFailedError(f"it sent more than {MAX_BYTES} bytes", "agent_protocol")
            self.heard()
            message = _message(line)
            if message is not None:
                return message
            self._garbage += bool(line.strip())
            if self._garbage > MAX_GARBAGE_LINES:
                raise AgentFailedError(
                    f"it sent more than {MAX_GARBAGE_LINES} lines that are not messages", "agent_protocol"
                )


@dataclass(slots=True)
class AgentConnection:
    """One life of an agent. :meth:`close` is called whatever happened."""

    agent: AcpAgent
    client: AcpClient
    runner: CommandRunner
    heard: Callable[[], object]
    failed: Callable[[AgentFailedError], object]
    process: DuplexProcess | None = None
    capabilities: schema.AgentCapabilities = field(default_factory=schema.AgentCapabilities)
    agent_info: str = ""
    _peer: Any = None
    _transport: ProcessTransport | None = None

    async def confinement(self, program: AgentProgram) -> str:
        """Say in one line how a sandbox confines it; empty: there is none. Raises: AgentFailedError."""
        try:
            return await asyncio.to_thread(self.runner.confinement, program.access)
        except SandboxUnavailableError as error:
            raise _no_sandbox(error) from error

    async def start(self, program: AgentProgram, offered: schema.ClientCapabilities) -> None:
        """Start the process and agree on the protocol. Raises: AgentFailedError."""
        try:
            for folder in (*program.cwd.parents[1::-1], program.cwd):  # those of runs, of the run, and its workspace
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if await self.confinement(program):
                make_state(self.agent)
            self.process = await self.runner.start(program.argv, program.access, cwd=program.cwd, env=program.env)
        except SandboxUnavailableError as error:
            raise _no_sandbox(error) from error
        except (OSError, ValueError) as error:
            raise AgentFailedError(f"{program.argv[0]} cannot be started: {error}", "agent_not_started") from error
        self._transport = ProcessTransport(self.process, self.heard, self.failed, self.client.room)
        self._peer = acp.connect_to_agent(self.client, self._transport, use_unstable_protocol=True)
        info = schema.Implementation(name="soong", title="Soong", version="1")
        said = await self._answer(
            "initialize", self._peer.initialize(acp.PROTOCOL_VERSION, client_capabilities=offered, client_info=info)
        )
        if said.protocol_version != acp.PROTOCOL_VERSION:
            words = f"it speaks protocol version {said.protocol_version}, and this program {acp.PROTOCOL_VERSION}"
            raise AgentFailedError(words, "agent_incompatible", is_retryable=False)
        self.capabilities = said.agent_capabilities or schema.AgentCapabilities()
        about = said.agent_info
        self.agent_info = f"{about.name} {about.version}"[:200] if about is not None else ""

    @property
    def can_resume(self) -> bool:
        sessions = self.capabilities.session_capabilities
        return bool(self.capabilities.load_session) or (sessions is not None and sessions.resume is not None)

    async def open_session(self, cwd: Path) -> str:
        """Begin a session in its most-asking mode and return its id. Raises: AgentFailedError."""
        said = await self._answer(
            "session/new", self._peer.new_session(cwd=str(cwd), mcp_servers=[], **self.agent.session)
        )
        if not said.session_id or len(said.session_id) > 1000:
            raise AgentFailedError("it gave its session no usable id", "agent_protocol")
        self.client.session_id = said.session_id
        await self._set_mode(said.modes)
        return str(said.session_id)

    async def resume_session(self, session_id: str, cwd: Path) -> None:
        """Take a session up that another process began. Raises: AgentFailedError."""
        self.client.session_id = session_id
        sessions = self.capabilities.session_capabilities
        meta = dict(self.agent.session)
        if sessions is not None and sessions.resume is not None:
            work = self._peer.resume_session(session_id=session_id, cwd=str(cwd), mcp_servers=[], **meta)
            said = await self._answer("session/resume", work)
        else:
            self.client.is_replaying = True
            work = self._peer.load_session(cwd=str(cwd), session_id=session_id, mcp_servers=[], **meta)
            said = await self._answer("session/load", work)
            self.client.is_replaying = False
        await self._set_mode(None if said is None else said.modes)

    async def prompt(self, text: str) -> schema.PromptResponse:
        """Send a prompt and return how its turn ended. Raises: AgentFailedError."""
        work = self._peer.prompt(session_id=self.client.session_id, prompt=[acp.text_block(text)])
        said: schema.PromptResponse = await self._called("session/prompt", work)
        return said

    async def _set_mode(self, modes: schema.SessionModeState | None) -> None:
        wanted = self.agent.mode
        if modes is None or not wanted:
            return
        known = [mode.id for mode in modes.available_modes]
        if wanted not in known:
            words = f"it has no session mode {wanted!r}, but {known}; name the one that asks most as `mode` of"
            raise AgentFailedError(f"{words} its entry in config.toml", "agent_incompatible", is_retryable=False)
        if modes.current_mode_id != wanted:
            await self._answer(
                "session/set_mode", self._peer.set_session_mode(session_id=self.client.session_id, mode_id=wanted)
            )

    async def _answer(self, method: str, work: Any) -> Any:
        """Wait for an answer that comes soon. Raises: AgentFailedError."""
        try:
            async with asyncio.timeout(timing.AGENT_START_LIMIT_S):
                return await self._called(method, work)
        except TimeoutError:
            raise AgentFailedError(
                f"it has not answered {method} for {timing.AGENT_START_LIMIT_S:g} s", "agent_silent"
            ) from None

    async def _called(self, method: str, work: Any) -> Any:
        try:
            return await work
        except RequestError as error:
            details = f": {str(error.data)[:_ERROR_CHARS]}" if error.data else ""
            hint = "; sign in with its own program first" if error.code == RequestError.auth_required().code else ""
            raise AgentFailedError(f"it refused {method} ({error}{details}){hint}") from error
        except ConnectionError:
            said = self.process.last_errors[-_ERROR_CHARS:] if self.process is not None else ""
            words = f"; it said: {said}" if said else ""
            raise AgentFailedError(f"it ended before it had answered {method}{words}") from None
        except ValidationError as error:
            words = f"its answer to {method} is not the protocol's: {str(error)[:_ERROR_CHARS]}"
            raise AgentFailedError(words, "agent_protocol") from error

    def kill(self) -> None:
        """Begin to end it, at once.

        It lives a moment longer. A no to the call that it waits for would be in its session, which another life takes
        up: so it hears nothing any more.
        """
        if self._transport is not None:
            self._transport.is_mute = True
        if self.process is not None:
            self.process.kill()

    async def close(self) -> None:
        self.kill()
        if self._peer is not None:
            await self._peer.close()
        if self.process is not None:
            with contextlib.suppress(OSError):  # it was never started, which was said before
                await self.process.end()


def _no_sandbox(error: SandboxUnavailableError) -> AgentFailedError:
    words = f"{error}; {error.hint}" if error.hint else str(error)
    return AgentFailedError(words, str(ErrorType.SANDBOX_DENIED), is_retryable=False)


def program_access(agent: AcpAgent, tools: Collection[str], run_dirs: RunDirs) -> CommandAccess:
    """Return the access of an agent whose run has these tools.

    Without a tool that writes, the project is read-only for its program, too: what it does without asking changes
    nothing there.
    """
    can_write = not {WRITE_FILE, RUN_COMMAND}.isdisjoint(tools)
    access = access_of(run_dirs, can_write=can_write, has_network=agent.has_network)
    writable = tuple(dict.fromkeys((*access.writable, *state_of(agent))))
    readable = (*access.readable, *map(_real, agent.readable), *settings_of(agent))
    return replace(access, writable=writable, readable=readable)


def state_of(agent: AcpAgent) -> Iterator[Path]:
    """Yield where an agent keeps what is its own. Raises: nothing; a place that is not there is not shown."""
    for place in agent.state:
        yield _real(Path(place).expanduser())


def settings_of(agent: AcpAgent) -> Iterator[Path]:
    """Yield what in its state says what the agent starts and lets itself do."""
    for folder in state_of(agent):
        yield from (folder / name for name in agent.settings)


def make_state(agent: AcpAgent) -> None:
    """Make what is not there yet of an agent's state: what it writes elsewhere ends with the sandbox.

    Its settings are made empty: what is there can be shown read-only, what is not could be made by its program.
    """
    for folder in state_of(agent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in settings_of(agent):
        if os.path.lexists(place):
            continue
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.suffix:
            place.write_text("{}\n" if place.suffix == ".json" else "", encoding="utf-8")
        else:
            place.mkdir(mode=0o700)


def _real(place: Path) -> Path:
    return Path(os.path.realpath(place))


def _message(line: bytes) -> dict[str, Any] | None:
    """Return the message that a line is; None for other text."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_message = isinstance(value, dict) and value.get("jsonrpc") == "2.0"
    is_sound = is_message and isinstance(value.get("method", ""), str) and isinstance(value.get("id", 0), int | str)
    return value if is_sound else None
