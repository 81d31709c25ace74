"""What a server offers, as it was last seen: the snapshot from which every process knows its tools (MCP-01.a).

A surface is computed where a task is written, and the server runs where a worker does. Both read one snapshot for each
server, ``mcp/<server>.json`` in the home, and neither has to start it for that. A snapshot belongs to the configuration
by which it was made; a process that connects later compares, and replaces it when the server has changed.
"""

import fcntl
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.file_systems import replace_file
from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json, digest, dump, parse_strict
from soong.shared.core.log import get_logger
from soong.shared.core.mcp_config import McpServerConfig
from soong.shared.core.value import Value

log = get_logger(__name__)

FOLDER: Final = "mcp"
MAX_TOOLS: Final = 1_000
MAX_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024
DIGEST_CHARS: Final = 16

_IDENTITY: Final = ("command", "args", "env", "url", "headers", "protocol", "oauth", "trusted", "tags")
"""The fields of a section that say which server it is and what is believed of it: a grant holds for these alone."""
_ODD: Final = re.compile(r"[^a-z0-9_\x80-\U0010ffff-]+")
_PUNYCODE: Final = "xn--"


class ServerTool(Value):
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


class ToolExclusion(Value):
    """A tool of a server that is left out, and why."""

    tool: str
    reason: str


class ServerSnapshot(Value):
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
    tools: tuple[ServerTool, ...] = ()
    left_out: tuple[ToolExclusion, ...] = ()
    """What it listed that cannot be kept."""
    v: Literal[2] = 2

    def definition_of(self, tool: ServerTool) -> str:
        """Return the digest of a tool's definition: of all that the server says of it, and of what the server is."""
        return digest({"config": self.config, "tool": _plain(tool.native)})[:DIGEST_CHARS]

    @property
    def digest(self) -> str:
        """The digest of what is offered, whenever it was seen."""
        return digest(sorted(self.definition_of(tool) for tool in self.tools))[:DIGEST_CHARS]


def config_digest(server: McpServerConfig) -> str:
    """Return the digest of what makes a server the one that it is; no secret goes into it, only its reference."""
    parts = server.model_dump(mode="json", include=set(_IDENTITY))
    return digest({**parts, "tags": sorted(server.tags)})[:DIGEST_CHARS]


def canonical_tool_name(server_id: str, native: str) -> str:
    """Return ``mcp.<server>.<tool>``: other signs become ``_``, and names in other scripts are written in Punycode."""
    name = _ODD.sub("_", unicodedata.normalize("NFC", native).lower()) or "_"
    return f"mcp.{server_id}.{name if name.isascii() else _PUNYCODE + name.encode('punycode').decode('ascii')}"


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
            found = msgspec.convert(parse_strict(content, max_bytes=MAX_SNAPSHOT_BYTES), ServerSnapshot)
        except FileNotFoundError:
            return None
        except (OSError, InvalidJsonError, msgspec.ValidationError) as error:
            log.warning("mcp_snapshot_unreadable", server=server_id, error=str(error))
            return None
        return found if found.server_id == server_id and found.config == config else None

    def write(self, snapshot: ServerSnapshot) -> None:
        """Replace a server's snapshot. In a home that cannot be written the old one stays."""
        if self._folder is None:
            return
        try:
            replace_file(self._folder / f"{snapshot.server_id}.json", dump(snapshot.as_json()))
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


def sound_tools(listed: Sequence[object]) -> tuple[tuple[ServerTool, ...], tuple[ToolExclusion, ...]]:
    """Return the listed tools that can be kept, plain JSON of a bearable size, and those that are left out."""
    tools: list[ServerTool] = []
    left_out: list[ToolExclusion] = []
    room = MAX_SNAPSHOT_BYTES // 2
    for place, native in enumerate(listed, 1):
        name = native.get("name") if isinstance(native, Mapping) else None
        if not isinstance(native, Mapping) or not isinstance(name, str) or not name:
            left_out.append(ToolExclusion(f"entry {place}", f"it has no name: {str(native)[:80]}"))
            continue
        kept = {str(key): _rounded(value) for key, value in native.items()}
        size = len(dump(kept).encode())
        if len(tools) == MAX_TOOLS or size > min(room, MAX_SNAPSHOT_BYTES // 32):
            reason = f"at most {MAX_TOOLS} tools are taken" if len(tools) == MAX_TOOLS else f"it has {size} bytes"
            left_out.append(ToolExclusion(name[:200], reason))
            continue
        room -= size
        tools.append(ServerTool(kept))
    return tuple(tools), tuple(left_out[:MAX_TOOLS])


def _rounded(value: Any) -> Any:
    """Return JSON with integers beyond 2^53, such as the bounds of a 64-bit number, as other readers round them."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= MAX_SAFE_INTEGER
    return value if not is_large else float(value) if abs(value) < 2**1000 else None


def _plain(native: Mapping[str, Any]) -> dict[str, Json]:
    return {str(key): value for key, value in native.items()}
