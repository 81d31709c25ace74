"""The user's configuration: ``config.toml`` in the home, what a person or a team has decided for their runs.

Settings (:mod:`soong.shared.core.settings`) control processes, the configuration limits runs: rules, hooks, paths,
commands, hosts. It is read from the user's home only, never from the project that is worked on (EXE-13). Values are
plain; the layer that owns their meaning makes rules, hooks and policies of them. Missing file, missing section: the
safe defaults below.
"""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from soong.shared.core import timing
from soong.shared.core.config_section import ConfigSection, Seconds, Text, wrong_places
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.core.program_config import PUBLIC_VARIABLES, AcpConfig, McpConfig
from soong.shared.core.settings import Settings

CONFIG_FILE: Final = "config.toml"
MAX_CONFIG_BYTES: Final = 1024 * 1024

ModelName = Annotated[str, Field(pattern=r"^[^\s:]{1,100}:\S{1,200}$")]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Milliseconds = Annotated[int, Field(ge=1, le=timing.LONGEST_S * 1000)]


class RuleConfig(ConfigSection):
    """One rule: deny beats ask beats allow, whatever the order (REG-08)."""

    effect: Literal["deny", "ask", "allow"] = Field(description="What the rule does.")
    tools: Text = Field(default="*", description="Glob over the full canonical name.")
    tags: Texts = Field(default=(), description="Tags that a tool must all carry.")
    scope: str = Field(
        default="", description="`/folder`, `host:NAME` or `exact:TEXT`; empty: wherever. An allow rule needs one."
    )


class PermissionConfig(ConfigSection):
    """``[permission]``: when calls are asked."""

    mode: Literal["auto", "strict"] = Field(
        default="auto", description="`strict` asks each time for everything above reading (PER-20)."
    )
    rules: tuple[RuleConfig, ...] = Field(default=(), strict=False, description="Rules, `[[permission.rules]]`.")
    timeout_s: Annotated[float, Field(gt=0, le=timing.LONGEST_S)] | None = Field(
        default=None,
        description="How long an attached responder may take for one question [300]; SOONG_PERMISSION_TIMEOUT_S wins.",
    )
    park_after_s: Annotated[float, Field(ge=0, le=timing.LONGEST_S)] | None = Field(
        default=None, description="How long a waiting run keeps its slot [30]; 0: not at all. SOONG_PARK_AFTER_S wins."
    )


class ToolsConfig(ConfigSection):
    """``[tools]``: which tools there are at all."""

    dangerous: bool = Field(default=False, description="Let tools tagged dangerous be used; each call still asks.")
    shell: bool = Field(default=False, description="Accept declarative tools with `command_type = shell`.")
    hidden: Texts = Field(default=(), description="Globs of tools that no run gets.")
    defer: Texts = Field(
        default=(),
        description="Globs of tools that models first see by name and hint, and find with `internal.tool_search`; "
        "tools that declare `defer` are among them as soon as there is one.",
    )
    defer_above: int = Field(default=0, ge=0, description="Defer only where a run has more tools than this.")
    always_load: Texts = Field(default=(), description="Globs of tools that never wait.")
    for_workers: Texts = Field(
        default=(),
        description="Globs of tools that a worker asks for in addition to those of its definition, where its step "
        "names no `allowed_tools`.",
    )
    default_timeout_ms: Milliseconds | None = Field(
        default=None, description="Time of a tool that declares none [120000]; SOONG_TOOL_TIMEOUT_MS wins."
    )
    max_timeout_ms: Milliseconds | None = Field(
        default=None, description="Longest time of any tool [600000]; SOONG_TOOL_MAX_TIMEOUT_MS wins."
    )


class PathsConfig(ConfigSection):
    """``[paths]``: the folders that file tools may read and write, and the sensitive files."""

    allowed_write_roots: Texts = Field(
        default=(), description="Absolute folders that may be written in addition to the project."
    )
    read_roots: Texts | None = Field(
        default=None,
        description="Absolute folders that are read without a question, besides the project and the write roots. "
        "`/` is every folder.",
    )
    temp_writes: bool = Field(default=False, description="Count /tmp and TMPDIR among the write roots.")
    sensitive: Texts = Field(default=(), description="More sensitive patterns; the built-in ones always apply.")


class CommandsConfig(ConfigSection):
    """``[commands]``: the environment and the limits of programs started by tools."""

    env: Texts = Field(default=(), description="Variables passed on besides PATH, HOME and TMPDIR.")
    secret_env: Texts = Field(
        default=(), description="Variables that are redacted everywhere and passed only when declared."
    )
    max_output_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024, description="Output kept of one command."
    )
    timeout_ms: int = Field(
        default=120_000,
        ge=1,
        le=600_000,
        description="Longest run of one command, within `tools.max_timeout_ms`; a model can only ask for less.",
    )
    sandbox: Literal["auto", "required", "off"] = Field(
        default="off",
        description="Run commands, declared tools and hooks in a Bubblewrap sandbox: `auto` where it works, `required` "
        "always, refusing to run them where it does not.",
    )
    sandbox_network: Texts = Field(
        default=(),
        description="Programs of `code.run_command` that have the network in the sandbox, by name or path; `*`: all.",
    )
    sandbox_read: Texts = Field(
        default=(), description="More absolute folders and files that every sandbox shows, read-only."
    )
    sandbox_write: Texts = Field(
        default=(), description="More absolute folders and files that every sandbox can write."
    )


class NetworkConfig(ConfigSection):
    """``[network]``: the policy for calls that reach a host (PER-09)."""

    mode: Literal["ask", "always_ask", "allowlist", "off"] = Field(
        default="ask",
        description="`ask` asks, and a grant holds for its host; `always_ask` asks each time, whatever was granted; "
        "`allowlist` refuses every host that is not listed; `off` refuses all.",
    )
    hosts: Texts = Field(default=(), description="The list: host names; `*.example.org` means below. They still ask.")
    allowed: Texts = Field(default=(), description="Hosts that are not asked for; they are listed, too.")
    robots: bool = Field(default=True, description="Let `web.fetch` heed what robots.txt of a site refuses.")


class HookConfig(ConfigSection):
    """One hook: a program that gets JSON on stdin and answers JSON on stdout (EXE-13)."""

    name: Text = Field(description="Name for events.")
    command: Texts = Field(min_length=1, description="Program and arguments; no shell.")
    tools: Text = Field(default="*", description="Glob over the canonical name.")
    tags: Texts = Field(default=(), description="Tags that a tool must all carry.")
    timeout_s: Seconds = Field(
        default=60.0, strict=False, description="Longest run; slower ones deny or decline, except Post hooks."
    )
    env: Texts = Field(default=(), description="Variables passed on besides the default ones.")
    network: bool = Field(default=False, description="Let it reach the network where hooks run in a sandbox.")


class HooksConfig(ConfigSection):
    """``[[hooks.pre]]``, ``[[hooks.post]]`` and those around what MCP servers ask, asked in the order written."""

    pre: tuple[HookConfig, ...] = Field(default=(), strict=False, description="Asked before permission.")
    post: tuple[HookConfig, ...] = Field(default=(), strict=False, description="Runs after every result.")
    elicitation: tuple[HookConfig, ...] = Field(
        default=(), strict=False, description="Asked before a person is asked what an MCP server asks."
    )
    elicitation_result: tuple[HookConfig, ...] = Field(
        default=(), strict=False, description="Runs before the server gets the answer."
    )

    @property
    def stages(self) -> Mapping[str, tuple[HookConfig, ...]]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    @property
    def all(self) -> tuple[HookConfig, ...]:
        return tuple(hook for hooks in self.stages.values() for hook in hooks)


class SkillsConfig(ConfigSection):
    """``[skills]``: the places of SKILL.md folders."""

    folders: Texts = Field(default=(), description="Absolute folders of skills in addition to `skills/` of the home.")
    project: bool = Field(default=True, description="Offer the skills in `.soong/skills` of the project, too.")


class InstructionsConfig(ConfigSection):
    """``[instructions]``: files of a project that speak to agents (FS-08)."""

    files: Texts = Field(default=("AGENTS.md", "CLAUDE.md"), description="Names of instruction files.")


class ContextConfig(ConfigSection):
    """``[context]``: the treatment of a run's history that is too long for its model (DIS-12)."""

    compaction: Literal["summarise", "drop_results", "off"] = Field(
        default="summarise",
        description="`summarise` has the model sum up what is older; `drop_results` leaves older results of tools out; "
        "`off` ends the run with `token_limit`.",
    )
    compact_at: float = Field(
        default=0.8, ge=0.1, le=1, strict=False, description="The share of the model's context at which it happens."
    )
    windows: dict[Text, Annotated[int, Field(ge=256)]] = Field(
        default_factory=dict,
        description="How many tokens a model reads at most, by its name or a glob, such as `ollama:*`, for models that "
        "the model library does not know. The first that matches holds.",
    )


class AgentsConfig(ConfigSection):
    """``[agents]``: agent definitions that a project brings with it (DIS-02)."""

    project: bool = Field(
        default=True, description="Offer the definitions in `.soong/agents` and `.claude/agents` of the project, too."
    )
    project_models: Texts = Field(
        default=(), description="Globs of models that such a definition and agents may choose; else the task's holds."
    )


class PriceConfig(ConfigSection):
    """``[prices]``: the price of a model, by its name or a glob, in place of wrong data of the model library."""

    input: float = Field(ge=0, strict=False, description="US dollars for a million tokens that it reads.")
    output: float = Field(ge=0, strict=False, description="US dollars for a million tokens that it writes.")


class ModelConfig(ConfigSection):
    """``[models]``: the settings of a model, by its name or a glob. All processes keep the limits together."""

    requests_per_minute: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most requests a minute, for all agents together."
    )
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most tokens a minute, read and written, as they are estimated beforehand."
    )
    fallback: tuple[ModelName, ...] = Field(
        default=(),
        max_length=5,
        strict=False,
        description="Models that continue a run, in their order, where the provider of its model fails for good and "
        "its definition names none.",
    )


class MemoryConfig(ConfigSection):
    """``[memory]``: the memories of sessions for later ones (MEM-01, MEM-02)."""

    enabled: bool = Field(default=True, description="Offer `internal.recall_memory`, and run the memory job.")
    provider: Text = Field(
        default="files",
        description="`files`: Markdown files in `memory/` of the home; else the module that has a `memory_provider`.",
    )
    write_mode: Literal["disabled", "candidate", "external"] = Field(
        default="candidate",
        description="What the job that runs after a session does. `disabled`: there is none; `candidate`: it proposes "
        "memories, which a person accepts; `external`: it gives them to the provider, but for what strangers may have "
        "written.",
    )
    model: Annotated[str, Field(pattern=r"^([^\s:]{1,100}:\S{1,200})?$")] = Field(
        default="", description="The model of the job; empty: that of the session's agent."
    )
    extractor: str = Field(
        default="",
        description="The scripted agent that does the job without a model, as MODULE:NAME; empty: a model does it.",
    )

    def remembers(self, *, is_ask: bool) -> bool:
        """Say whether a job may read a session of an ask, or of a plan, when it is closed."""
        return self.enabled and self.write_mode != "disabled" and (is_ask or bool(self.extractor))


class BudgetsConfig(ConfigSection):
    """``[budgets]``: the money and tokens that agents may use, such as `5usd`, `2mtok` or `5usd,2mtok` (DIS-11)."""

    day: str = Field(default="", description="All sessions together in a day of UTC; empty: no limit.")
    session: str = Field(default="", description="Each new session that names no budget itself; empty: no limit.")


class Config(ConfigSection):
    """All sections. Frozen: a process works under the configuration it started with. Defaults are constructed, not
    validated, which would build the validators of all sections at import.
    """

    permission: PermissionConfig = PermissionConfig.model_construct()
    tools: ToolsConfig = ToolsConfig.model_construct()
    paths: PathsConfig = PathsConfig.model_construct()
    commands: CommandsConfig = CommandsConfig.model_construct()
    network: NetworkConfig = NetworkConfig.model_construct()
    hooks: HooksConfig = HooksConfig.model_construct()
    skills: SkillsConfig = SkillsConfig.model_construct()
    instructions: InstructionsConfig = InstructionsConfig.model_construct()
    context: ContextConfig = ContextConfig.model_construct()
    agents: AgentsConfig = AgentsConfig.model_construct()
    acp: AcpConfig = AcpConfig.model_construct()
    memory: MemoryConfig = MemoryConfig.model_construct()
    budgets: BudgetsConfig = BudgetsConfig.model_construct()
    prices: dict[str, PriceConfig] = Field(default_factory=dict)
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    toolsets: dict[Text, bool | Texts] = Field(
        default_factory=dict,
        description="Toolsets switched off (`false`), or reduced to the tools that a list of globs covers.",
    )
    mcp: McpConfig = McpConfig.model_construct()
    notifications: NotificationsConfig = NotificationsConfig.model_construct()

    @property
    def secret_env(self) -> tuple[str, ...]:
        """The variables that hold secrets: those marked so, and those that MCP servers and channels refer to."""
        named = (name for kind, name in self._references() if kind == "env" and name not in PUBLIC_VARIABLES)
        return (*self.commands.secret_env, *named)

    @property
    def secret_files(self) -> tuple[Path, ...]:
        return tuple(Path(name).expanduser() for kind, name in self._references() if kind == "file")

    def _references(self) -> Iterator[tuple[str, str]]:
        for server in self.mcp.servers.values():
            yield from server.references
        yield from self.notifications.references


def load_config(home: Path) -> Config:
    """Read the configuration of a home; the defaults when there is no file.
    Raises: InvalidConfigError, names the file and every wrong place in it.
    """
    path = home / CONFIG_FILE
    try:
        content = _content(path)
        text = None if content is None else content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {error}") from error
    return Config.model_construct() if text is None else parse_config(text, str(path))


def _content(path: Path) -> bytes | None:
    """Return the content of the file; None when there is none. It names programs that run with the user's rights.
    Raises: InvalidConfigError, it is not a file, too large, or others can write it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block the start
    except FileNotFoundError:
        return None
    try:
        _check(os.fstat(descriptor), path)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_CONFIG_BYTES:
        raise InvalidConfigError(f"{path} has more than {MAX_CONFIG_BYTES} bytes; that is not a configuration")
    return content


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidConfigError(f"{path} is not a regular file; write the configuration in one")
    if status.st_uid not in (0, os.geteuid()):
        raise InvalidConfigError(f"{path} belongs to another user, who could name programs that you run; own it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfigError(f"{path} can be written by other users; say chmod go-w {path}")


def parse_config(text: str, place: str = CONFIG_FILE) -> Config:
    """Read a configuration from its text. Raises: InvalidConfigError, names every wrong place."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"{place} is not TOML: {error}") from error
    except ValidationError as error:
        raise InvalidConfigError(f"{place}: {wrong_places(error, Config)}") from error


FILE_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "permission_timeout_s": ("permission", "timeout_s"),
    "park_after_s": ("permission", "park_after_s"),
    "tool_timeout_ms": ("tools", "default_timeout_ms"),
    "tool_max_timeout_ms": ("tools", "max_timeout_ms"),
}
"""The section and the key of each such setting."""


def with_config(settings: Settings, config: Config) -> Settings:
    """Return the settings with what only the configuration gives."""
    found = {name: value for name, value in given_by(config).items() if name not in settings.model_fields_set}
    return settings.model_copy(update=found) if found else settings


def given_by(config: Config) -> dict[str, Any]:
    """Return the settings that a configuration gives, by the name of the setting."""
    values = {name: getattr(getattr(config, section), key) for name, (section, key) in FILE_KEYS.items()}
    return {name: value for name, value in values.items() if value is not None}
