"""A project, a home with MCP servers, and calls of their tools through the pipeline; the servers are processes."""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from msgspec.structs import replace

from soong.shared.core.config import Config, parse_config
from soong.shared.core.jsontext import Json
from soong.shared.tools.execution import PROGRESS_EVENT
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks
from soong.shared.tools.pipeline import PipelineConfig, RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall, Verdict
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry
from soong.shared.tools.result import ToolResult
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, config_digest
from soong.shared.toolsets.mcp.pool import McpServers
from soong.shared.toolsets.mcp.toolset import McpTools, look_now, servers_of
from tests.unit.tools.parts import ALLOWED, Artifacts, RecordingGate, RecordingLog, make_identity, make_run_dirs
from tests.waiting import until

SERVER: Final = Path(__file__).with_name("server.py")


def stdio_config(name: str = "t", more: str = "", args: str = "", top: str = "", program: Path = SERVER) -> str:
    """Return a configuration of a test server as a program."""
    extra = f', "{args}"' if args else ""
    return f"""
[mcp]
{top or "idle_s = 300"}
[mcp.servers.{name}]
command = "{sys.executable}"
args = ["{program}", "stdio"{extra}]
{more}
"""


@dataclass
class McpScene:
    """One process that has MCP servers: what a worker or a direct session is to them."""

    folder: Path
    config: Config
    registry: ToolRegistry = field(default_factory=ToolRegistry)
    gate: RecordingGate = field(default_factory=RecordingGate)
    log: RecordingLog = field(default_factory=RecordingLog)
    artifacts: Artifacts = field(default_factory=Artifacts)
    hooks: Hooks = NO_HOOKS
    calls: int = 0
    servers: McpServers = field(init=False)

    def __post_init__(self) -> None:
        self.servers = servers_of(self.home, self.config)
        self.project.mkdir(exist_ok=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def progress(self) -> list[str]:
        """What the calls have told of their progress."""
        return [str(data["message"]) for kind, data in self.log.notes if kind == PROGRESS_EVENT]

    @property
    def is_handshake(self) -> bool:
        return self.config.mcp.servers["t"].protocol == "handshake"

    def pipeline(self, project: Path | None = None, **limits: Any) -> ToolPipeline:
        """Return the pipeline of a run that begins now."""
        run = RunScope(make_identity(), 7, make_run_dirs(project or self.project))
        tools = self.registry.definitions()
        config = PipelineConfig(**limits)
        return ToolPipeline(tools, run, self.gate, self.log, hooks=self.hooks, artifacts=self.artifacts, config=config)

    async def call(self, tool: str, /, project: Path | None = None, **arguments: Json) -> ToolResult:
        return await self.call_in(self.pipeline(project), tool, arguments)

    async def call_in(self, pipeline: ToolPipeline, tool: str, arguments: Mapping[str, Json]) -> ToolResult:
        self.calls += 1
        return await pipeline.execute(ToolCall(f"call_{self.calls}", tool, dict(arguments)))


_SEEN: dict[tuple[str, ...], ServerSnapshot] = {}
"""What test servers have shown to this process, by the words of their commands."""


async def look_once(servers: McpServers) -> None:
    """Have the server known, and ask it what it offers only if nobody in this process has."""
    server = servers.config.servers["t"]
    words = tuple(server.args)
    if words not in _SEEN:
        await look_now(servers, servers.enabled)
        found = servers.snapshot("t")
        assert found is not None
        _SEEN[words] = found
    servers.keep(replace(_SEEN[words], config=config_digest(server)))


@asynccontextmanager
async def mcp_scene(folder: Path, text: str, *, is_known: bool = False) -> AsyncIterator[McpScene]:
    """Discover the servers of a configuration and register their tools; leave with none of them alive."""
    made = McpScene(folder, parse_config(text))
    made.home.mkdir(exist_ok=True)
    await (look_once(made.servers) if is_known else look_now(made.servers, made.servers.enabled))
    McpTools(made.servers, MAX_TIMEOUT).register(made.registry)
    try:
        yield made
    finally:
        pids = [child for pid in made.servers.pids for child in family(pid)]
        await made.registry.close()
        await until(lambda: not any(map(psutil.pid_exists, pids)))


def asking_tool(scene: McpScene) -> str:
    """Return the tool that asks a person in the way of the wire."""
    return "mcp.t.ask" if scene.is_handshake else "mcp.t.ask_in_rounds"


@contextmanager
def answering(scene: McpScene, *said: str | None) -> Iterator[None]:
    """Have a person answer the questions of servers with these words, one after another; None declines."""
    left = iter(said)

    async def answer() -> None:
        if scene.gate.asked[-1].is_under_way:
            reason = next(left)
            scene.gate.verdict = Verdict(is_allowed=reason is not None, author="person", reason=reason or "")

    scene.gate.before = answer
    try:
        yield
    finally:
        scene.gate.before, scene.gate.verdict = None, ALLOWED


def family(pid: int) -> list[int]:
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []
