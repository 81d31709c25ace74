"""The section ``[acp]`` of the configuration: agents of others, as a user names them (ACP-01)."""

from typing import Annotated, Any, Final

from pydantic import Field

from soong.shared.core.config_section import ConfigSection, Text

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
