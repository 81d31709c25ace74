"""Logins at MCP servers over HTTP (OAuth): one file for each server, in the home, readable by its user alone.

A login belongs to the address for which it was made: at another one it is none. Nothing of it is in a row, an event,
a log, a command line or a snapshot.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from soong.shared.core.file_systems import replace_file
from soong.shared.core.log import get_logger

log = get_logger(__name__)

FOLDER: Final = ("mcp", "logins")
MAX_BYTES: Final = 256 * 1024


_refused: ContextVar[list[str] | None] = ContextVar("mcp_refusals", default=None)


@contextmanager
def refusals(found: list[str]) -> Iterator[None]:
    """Collect the reasons for which a server takes no request of what runs within: what a person has to do."""
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
        """Say whether there is a refresh token that was not refused."""
        return bool(self.tokens.get("refresh_token")) and not self.is_ended

    def has_expired(self, now_us: int) -> bool:
        """Say whether its access token has run out."""
        return self.expires_us is not None and self.expires_us <= now_us

    def state(self, now_us: int) -> str:
        """Return what lists say of it."""
        if self.is_ended or (self.has_expired(now_us) and not self.can_be_renewed):
            return "login ended"
        return "logged in"


class LoginFolder:
    """The logins of a home; without one there are none."""

    def __init__(self, home: Path | None) -> None:
        self._folder = None if home is None else home.joinpath(*FOLDER)

    def read(self, server_id: str, url: str) -> ServerLogin | None:
        """Return the login at a server of this address; None when there is none that may be used for it."""
        try:
            with self._path(server_id).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
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

    @contextmanager
    def renewing(self, server_id: str) -> Iterator[bool]:
        """Yield whether this process may renew the login now: a refresh token is often good for one use.

        Raises:
            OSError: the home cannot be written.
        """
        place = self._path(server_id)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def _path(self, server_id: str) -> Path:
        if self._folder is None:
            raise FileNotFoundError("a process without a home has no logins")
        return self._folder / f"{server_id}.json"
