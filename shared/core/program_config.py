"""``[mcp]`` (MCP-01) and ``[acp]`` (ACP-01) of ``config.toml``: servers and agents of others, as a user names them.

They hold secrets by reference only; :mod:`soong.shared.core.secret_values` resolves references.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from soong.shared.core.config_section import ConfigSection, Seconds, Text, matching
from soong.shared.core.secret_values import INNER_REFERENCE, WHOLE_REFERENCE

_NAME: Final = r"\.?[^./][^/]*"
Inside = Annotated[str, Field(pattern=f"^{_NAME}(/{_NAME})*$")]
AcpName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


class AcpAgentConfig(ConfigSection):
    """``[acp.agents.NAME]``: a program that speaks the Agent Client Protocol, for ``agent: acp:NAME``."""

    command: tuple[Text, ...] = Field(
        default=(), strict=False, description="Program and arguments; no shell. Left out: that of the built-in agent."
    )
    env: tuple[Text, ...] | None = Field(
        default=None, strict=False, description="Variables passed on besides PATH, HOME and TMPDIR; keys among them."
    )
    variables: dict[Text, str] | None = Field(
        default=None, description="Variables with their values; a key belongs into `env`, by its name."
    )
    mode: str | None = Field(
        default=None, description="The session mode that it works in; built-in agents have the one that asks most."
    )
    session: dict[str, Any] | None = Field(
        default=None, description="What it gets as `_meta` of a new session, in its own terms."
    )
    state: tuple[Text, ...] | None = Field(
        default=None, strict=False, description="Folders of its own that it may write in a sandbox; `~/` is the home."
    )
    settings: tuple[Inside, ...] | None = Field(
        default=None,
        strict=False,
        description="Files and folders in those that a sandbox shows read-only, by names relative to them.",
    )
    network: bool = Field(
        default=True, description="Whether it has the network in a sandbox; most agents reach their model by it."
    )
    files: bool | None = Field(
        default=None,
        description="Whether it may have Soong read and write files; otherwise it asks and does it itself.",
    )
    silence_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=600.0, strict=False, description="How long it may say nothing while nothing of it is under way."
    )


class AcpConfig(ConfigSection):
    """``[acp]``: agents of others that run as children (ACP-01)."""

    agents: dict[AcpName, AcpAgentConfig] = Field(
        default_factory=dict, description="By name: lower-case letters, digits, `_` and `-`."
    )


SERVER_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
OWN_ID: Final = "soong"
"""The orchestrator's own MCP server, which is never a source of tools (PER-13)."""

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
