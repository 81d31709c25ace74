"""The last known offer of a server: the snapshot from which every process reads its tools (MCP-01.a).

A surface is computed where a task is written, and the server runs where a worker does. Both read one snapshot for each
server, ``mcp/<server>.json`` in the home, and neither has to start it for that. A snapshot belongs to the configuration
by which it was made; a process that connects later compares, and replaces it when the server has changed.

A login at a server over HTTP (OAuth) is a file of the home, readable by its user alone. It belongs to the address for
which it was made: at another one it is none. Nothing of it is in a row, an event, a log, a command line or a snapshot.
"""

import fcntl
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.file_systems import replace_file
from soong.shared.core.jsontext import MAX_SAFE_INTEGER, digest, dump, parse_strict
from soong.shared.core.log import get_logger
from soong.shared.core.program_config import McpServerConfig
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

LOGINS: Final = ("mcp", "logins")
MAX_LOGIN_BYTES: Final = 256 * 1024


_refused: ContextVar[list[str] | None] = ContextVar("mcp_refusals", default=None)


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
    """The answer of one server. ``problem`` is why there is none; then it has no tools."""

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
    """The listed tools that cannot be kept."""
    v: Literal[2] = 2

    def definition_of(self, tool: ServerTool) -> str:
        """Return the digest of a tool's definition: of its full description and of the server's configuration."""
        return digest({"config": self.config, "tool": dict(tool.native)})[:DIGEST_CHARS]

    @property
    def digest(self) -> str:
        """The digest of the offered tools, independent of the time."""
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
    """The snapshots of a home. Without write access to it, they live as long as the process."""

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
        if self._folder is not None:
            (self._folder / f"{server_id}.json").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process of this home look for servers at a time; without a folder of ours, each looks for itself."""
        with ExitStack() as stack:
            if self._folder is not None:
                with suppress(OSError):
                    stack.enter_context(_locked(self._folder / ".lock", waits=True))
            yield


@contextmanager
def _locked(place: Path, *, waits: bool) -> Iterator[bool]:
    """Lock a file, made when there is none; yield False where another process has it and this one does not wait."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
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


@contextmanager
def refusals(found: list[str]) -> Iterator[None]:
    """Collect the reasons for which a server takes no request from within: the acts that a person must do."""
    token = _refused.set(found)
    try:
        yield
    finally:
        _refused.reset(token)


def note_refusal(problem: str) -> None:
    """Add a reason to those of the call whose request it is; the SDK sends a request in the context of its call."""
    found = _refused.get()
    if found is not None:
        found.append(problem)


class ServerLogin(BaseModel):
    """A login, with what is needed to renew it.

    ``client``, ``tokens``, ``metadata`` and ``resource`` are the documents of the authorization server and of the MCP
    server (RFC 7591, 6749, 8414, 9728), as the SDK reads them; ``is_ended``: it was refused and cannot be renewed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    v: Literal[1] = 1
    server: str
    url: str
    client: dict[str, Any] = Field(repr=False)
    tokens: dict[str, Any] = Field(repr=False)
    metadata: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None
    expires_us: int | None = None
    is_ended: bool = False

    @property
    def access_token(self) -> str:
        return str(self.tokens.get("access_token", ""))

    @property
    def can_be_renewed(self) -> bool:
        return bool(self.tokens.get("refresh_token")) and not self.is_ended

    def has_expired(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us

    def state(self, now_us: int) -> str:
        if self.is_ended or (self.has_expired(now_us) and not self.can_be_renewed):
            return "login ended"
        return "logged in"


class LoginFolder:
    """The logins of a home; without one there are none."""

    def __init__(self, home: Path | None) -> None:
        self._folder = None if home is None else home.joinpath(*LOGINS)

    def read(self, server_id: str, url: str) -> ServerLogin | None:
        """Return the login at a server of this address; None when there is none that may be used for it."""
        try:
            with self._path(server_id).open("rb") as file:
                content = file.read(MAX_LOGIN_BYTES + 1)
            found = ServerLogin.model_validate_json(content)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("mcp_login_unreadable", server=server_id, error=type(error).__name__)  # its words hold tokens
            return None
        return found if (found.server, found.url) == (server_id, url) else None

    def stamp(self, server_id: str) -> tuple[int, int] | None:
        """Return what differs when the file was exchanged; None while there is none."""
        try:
            status = self._path(server_id).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def write(self, login: ServerLogin) -> None:
        """Replace the login at a server. A reader sees the old one or this. Raises: OSError."""
        replace_file(self._path(login.server), login.model_dump_json())

    def remove(self, server_id: str) -> bool:
        """Remove the login at a server; say whether there was one. Raises: OSError."""
        try:
            self._path(server_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def renewing(self, server_id: str) -> AbstractContextManager[bool]:
        """Yield whether this process may renew the login now: a refresh token is often good for one use.
        Raises: OSError, the home cannot be written.
        """
        return _locked(self._path(server_id).with_suffix(".lock"), waits=False)

    def _path(self, server_id: str) -> Path:
        if self._folder is None:
            raise FileNotFoundError("a process without a home has no logins")
        return self._folder / f"{server_id}.json"
