"""What a server offers, as it was last seen: the snapshot from which every process knows its tools (MCP-01.a).

A surface is computed where a task is written, and the server runs where a worker does. Both read one snapshot for each
server, ``mcp/<server>.json`` in the home, and neither has to start it for that. A snapshot belongs to the configuration
by which it was made; a process that connects later compares, and replaces it when the server has changed.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, canonical, digest, dump, parse_strict
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.core.log import get_logger
from soong.shared.core.mcp_config import McpServerConfig

log = get_logger(__name__)

FOLDER: Final = "mcp"
SNAPSHOT_VERSION: Final = 1
MAX_TOOLS: Final = 1_000
MAX_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024
DIGEST_CHARS: Final = 16

_ODD: Final = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ServerTool:
    """One tool in the server's own words. ``native`` is the entry of ``tools/list``."""

    native: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.native.get("name", ""))

    @property
    def description(self) -> str:
        return str(self.native.get("description") or "")

    def hint(self, name: str) -> bool | None:
        """Return an annotation: ``readOnlyHint``, or ``read_only_hint`` as servers written in Python say it."""
        hints = self.native.get("annotations")
        if not isinstance(hints, Mapping):
            return None
        snake = re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)
        found = {hints[key] for key in (name, snake) if isinstance(hints.get(key), bool)}
        return found.pop() if len(found) == 1 else None  # two spellings that differ say nothing


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """What one server said when it was asked. ``problem`` says why it could not be; then it has no tools."""

    server_id: str
    config: str
    """The digest of the configuration under which it was asked."""
    seen_us: int = 0
    problem: str = ""
    protocol: str = ""
    name: str = ""
    version: str = ""
    has_resources: bool = False
    tools: tuple[ServerTool, ...] = field(default=())

    def definition_of(self, tool: ServerTool) -> str:
        """Return the digest of a tool's definition: of all that the server says of it, and of what the server is."""
        return digest({"config": self.config, "tool": _plain(tool.native)})[:DIGEST_CHARS]

    @property
    def digest(self) -> str:
        """The digest of what is offered, whenever it was seen."""
        return digest(sorted(self.definition_of(tool) for tool in self.tools))[:DIGEST_CHARS]

    def as_json(self) -> dict[str, Json]:
        return {
            "v": SNAPSHOT_VERSION,
            "server": self.server_id,
            "config": self.config,
            "seen_us": self.seen_us,
            "problem": self.problem,
            "protocol": self.protocol,
            "name": self.name,
            "version": self.version,
            "has_resources": self.has_resources,
            "tools": [_plain(tool.native) for tool in self.tools],
        }


def config_digest(server: McpServerConfig) -> str:
    """Return the digest of what makes a server the one that it is; no secret goes into it, only its reference."""
    said: dict[str, Json] = {
        "command": server.command,
        "args": list(server.args),
        "env": dict(server.env),
        "url": server.url,
        "headers": dict(server.headers),
        "protocol": server.protocol,
    }
    return digest(said)[:DIGEST_CHARS]


def canonical_tool_name(server_id: str, native: str) -> str:
    """Return ``mcp.<server>.<tool>``; what a canonical name cannot say becomes ``_``."""
    return f"mcp.{server_id}.{_ODD.sub('_', native.lower()) or '_'}"


class SnapshotFolder:
    """The snapshots of a home. Where it cannot be written, they live as long as the process."""

    def __init__(self, home: Path | None) -> None:
        self._folder = None if home is None else home / FOLDER

    def read(self, server_id: str, config: str) -> ServerSnapshot | None:
        """Return the snapshot of a server under this configuration; None when there is none to be used."""
        if self._folder is None:
            return None
        try:
            content = (self._folder / f"{server_id}.json").read_bytes()
            said = parse_strict(content, max_bytes=MAX_SNAPSHOT_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, InvalidJsonError) as error:
            log.warning("mcp_snapshot_unreadable", server=server_id, error=str(error))
            return None
        found = _snapshot_from(said)
        return found if found is not None and found.server_id == server_id and found.config == config else None

    def write(self, snapshot: ServerSnapshot) -> None:
        """Replace a server's snapshot. In a home that cannot be written the old one stays."""
        if self._folder is None:
            return
        text = dump(snapshot.as_json())
        temporary = self._folder / f".{snapshot.server_id}.{os.getpid()}.tmp"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.touch(mode=0o600)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._folder / f"{snapshot.server_id}.json")
        except OSError as error:
            log.info("mcp_snapshot_not_written", server=snapshot.server_id, error=str(error))

    def remove(self, server_id: str) -> None:
        """Forget a server."""
        if self._folder is not None:
            (self._folder / f"{server_id}.json").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process of this home look for servers at a time; without a folder of ours, each looks for itself."""
        try:
            if self._folder is None:
                raise FileNotFoundError
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _snapshot_from(said: Json) -> ServerSnapshot | None:
    if not isinstance(said, Mapping) or said.get("v") != SNAPSHOT_VERSION:
        return None
    tools = said.get("tools")
    seen = said.get("seen_us")
    return ServerSnapshot(
        server_id=str(said.get("server", "")),
        config=str(said.get("config", "")),
        seen_us=seen if isinstance(seen, int) else 0,
        problem=str(said.get("problem", "")),
        protocol=str(said.get("protocol", "")),
        name=str(said.get("name", "")),
        version=str(said.get("version", "")),
        has_resources=said.get("has_resources") is True,
        tools=tuple(ServerTool(tool) for tool in tools if isinstance(tool, Mapping)) if isinstance(tools, list) else (),
    )


def sound_tools(listed: list[Mapping[str, Any]]) -> tuple[ServerTool, ...]:
    """Return the listed tools that can be kept: plain JSON of a bearable size, at most ``MAX_TOOLS``."""
    return tuple(ServerTool(tool) for tool in listed[:MAX_TOOLS] if _is_storable(tool))


def _is_storable(tool: Mapping[str, Any]) -> bool:
    try:
        return len(canonical(_plain(tool))) <= MAX_SNAPSHOT_BYTES // 32
    except InvalidJsonError:
        return False


def _plain(native: Mapping[str, Any]) -> dict[str, Json]:
    return {str(key): value for key, value in native.items()}
