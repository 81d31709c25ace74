"""``[mcp]`` of ``config.toml``: the MCP servers of a user, whose tools agents may be given (MCP-01).

It holds secrets by reference only. :mod:`soong.shared.core.references` defines references.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from soong.shared.core.config_section import ConfigSection, Seconds, Text, matching

SERVER_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
OWN_ID: Final = "soong"
"""The orchestrator's own MCP server, which is never a source of tools (PER-13)."""

WHOLE_REFERENCE: Final = re.compile(r"(env|file):(.+)", re.DOTALL)
INNER_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")
"""How a value refers to a secret: as a whole, or within a text."""

PUBLIC_VARIABLES: Final = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER"})
"""Variables whose values are public, although a server refers to them."""

_REFERENCED: Final = "; `env:NAME` is the variable of the worker, `file:PATH` the content of a file, also inside a "
_IN_TEXT: Final = "value as `${env:NAME}` or `${file:PATH}`"


def _server_id(name: str) -> str:
    if name == OWN_ID:
        raise ValueError(f"{OWN_ID!r} is the name of Soong's own server; choose another")
    if not SERVER_ID.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of a server: 1 to 32 of a-z, 0-9, '_' and '-', beginning with a-z")
    return name


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an http or https URL")
    if parts.username or parts.password:
        raise ValueError("holds a user or a password; give them as a header, by reference")
    return value


_Tag = Annotated[Text, matching(r"[a-z0-9][a-z0-9_-]*", "{!r} is not a tag: a-z, 0-9, '_' and '-'")]
_IN_PLAIN: Final = "is a secret in plain text; expected a reference, env:NAME or file:PATH"


class McpOAuthConfig(ConfigSection):
    """``[mcp.servers.<id>.oauth]``: the client that `soong mcp login` is at the authorization server of a server."""

    client_id: str = Field(default="", description="A client that was registered beforehand; else one is registered.")
    client_secret: Annotated[str, matching(WHOLE_REFERENCE.pattern, _IN_PLAIN, is_optional=True)] = Field(
        default="", description="Its secret, by reference: `env:NAME` or `file:PATH`."
    )
    client_auth: Literal["client_secret_basic", "client_secret_post"] = Field(
        default="client_secret_basic", description="How the secret is sent to the token endpoint."
    )
    client_metadata_url: str = Field(
        default="", description="The https address of a client ID metadata document, for servers that take one."
    )
    scope: str = Field(default="", description="Rights to ask for in addition to those that the server names.")
    redirect_port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        default=0, description="The port of 127.0.0.1 to which the browser returns; 0 takes a free one."
    )

    @model_validator(mode="after")
    def _whose_secret(self) -> Self:
        if self.client_secret and not self.client_id:
            raise ValueError("client_secret belongs to a client_id")
        if self.client_metadata_url and urlsplit(self.client_metadata_url).scheme != "https":
            raise ValueError("client_metadata_url is not an https address")
        return self


class McpServerConfig(ConfigSection):
    """``[mcp.servers.<id>]``: one server. Either ``command`` or ``url``."""

    command: str = Field(default="", description="The program that is the server, over standard input and output.")
    args: tuple[str, ...] = Field(default=(), strict=False, description="Its arguments. No secrets: `ps` shows them.")
    env: dict[Text, str] = Field(
        default_factory=dict,
        description=f"Its environment, besides PATH, HOME, TMPDIR and `commands.env`{_REFERENCED}{_IN_TEXT}.",
    )
    url: Annotated[str, AfterValidator(lambda value: _url(value) if value else value)] = Field(
        default="", description="The address of a server over streamable HTTP."
    )
    headers: dict[Text, str] = Field(
        default_factory=dict, description="Headers of every request, with secrets by reference like those of `env`."
    )
    oauth: McpOAuthConfig | None = Field(
        default=None, description="The client of `soong mcp login`; without it, one is registered at the login."
    )
    protocol: Literal["auto", "handshake", "stateless"] = Field(
        default="auto",
        description="The wire: `handshake` is MCP 2025-11-25 and before, `stateless` is 2026-07-28; `auto` asks.",
    )
    trusted: bool = Field(
        default=False, description="Believe what the server declares of its tools: read-only, closed world."
    )
    tags: tuple[_Tag, ...] = Field(
        default=(), strict=False, description="More tags of its tools, such as `network` or `dangerous`."
    )
    timeout_s: Seconds = Field(default=100.0, strict=False, description="Longest call of one of its tools.")
    start_timeout_s: Seconds = Field(
        default=30.0, strict=False, description="Longest start, until the server answers its first request."
    )
    enabled: bool = Field(default=True, description="Whether its tools are there at all.")
    resources: bool = Field(default=True, description="Whether its resources can be listed and read.")
    tools: tuple[Text, ...] = Field(
        default=("*",), strict=False, description="Globs of the tools that are offered, by the server's own names."
    )
    hidden_tools: tuple[Text, ...] = Field(
        default=(), strict=False, description="Globs of tools that are not offered, of those of `tools`."
    )

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("needs either command (a program) or url (a server over HTTP)")
        if self.url and (self.args or self.env):
            raise ValueError("args and env belong to a command; a server at a url takes headers")
        if self.command and self.oauth is not None:
            raise ValueError("oauth belongs to a url")
        if self.command and self.headers:
            raise ValueError("headers belong to a url; a command takes env")
        return self

    @model_validator(mode="after")
    def _named_program(self) -> Self:
        if "/" in self.command and not self.command.startswith(("/", "~/")):
            raise ValueError(
                f"command {self.command!r} is a relative path; name a program on PATH or write its full path"
            )
        return self

    @property
    def takes_login(self) -> bool:
        """Say whether it may be reached by a login: over HTTP, and not by a header of its section."""
        return bool(self.url) and not any(name.lower() == "authorization" for name in self.headers)

    @property
    def references(self) -> Iterator[tuple[str, str]]:
        """Yield what its values refer to, as (``env`` or ``file``, name)."""
        secret = () if self.oauth is None else (self.oauth.client_secret,)
        for value in (*self.env.values(), *self.headers.values(), *secret):
            whole = WHOLE_REFERENCE.fullmatch(value)
            for match in (whole,) if whole else INNER_REFERENCE.finditer(value):
                yield match[1], match[2]


class McpConfig(ConfigSection):
    """``[mcp]``: servers, and how long an unused one is kept."""

    idle_s: Annotated[float, Field(ge=1, le=86_400)] = Field(
        default=300.0, strict=False, description="How long a server that no call uses is kept running."
    )
    servers: dict[Annotated[str, AfterValidator(_server_id)], McpServerConfig] = Field(
        default_factory=dict, description="The servers, by the name that their tools carry."
    )
