"""The code tools as one source (REG-07, REG-12)."""

from datetime import timedelta

import msgspec

from soong.shared.core.config import Config
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.registry import MAX_TIMEOUT
from soong.shared.toolsets.code.edit_file import edit_file_tool
from soong.shared.toolsets.code.list_dir import list_dir_tool
from soong.shared.toolsets.code.read_file import MAX_PAGE_CHARS, read_file_tool
from soong.shared.toolsets.code.run_command import CommandTool
from soong.shared.toolsets.code.search import search_tool
from soong.shared.toolsets.code.write_file import write_file_tool


def code_tools(
    policy: PathPolicy | None = None,
    config: Config | None = None,
    *,
    runner: CommandRunner | None = None,
    redactor: Redactor | None = None,
    max_timeout: timedelta = MAX_TIMEOUT,
    max_result_chars: int = MAX_PAGE_CHARS,
) -> tuple[ToolDefinition, ...]:
    """Return the code tools under one policy; without one, the default patterns and no home of our own."""
    rules, wanted = policy or PathPolicy(), config or Config()
    read_file = read_file_tool(rules, max_page_chars=max_result_chars, instruction_files=wanted.instructions.files)
    limit = min(timedelta(milliseconds=wanted.commands.timeout_ms), max_timeout)
    commands = wanted.commands
    if wanted.network.mode == "off":
        commands = commands.model_copy(update={"sandbox_network": ()})
    command = CommandTool(rules, runner or ProcessRunner(), commands, redactor or Redactor(), limit)
    return (
        edit_file_tool(rules),
        list_dir_tool(rules),
        read_file,
        command.definition(),
        search_tool(rules),
        write_file_tool(rules),
    )


class CodeTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over :func:`code_tools`."""

    policy: PathPolicy | None = None
    config: Config | None = None
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    max_timeout: timedelta = MAX_TIMEOUT
    max_result_chars: int = MAX_PAGE_CHARS

    def tools(self) -> tuple[ToolDefinition, ...]:
        return code_tools(
            self.policy,
            self.config,
            runner=self.runner,
            redactor=self.redactor,
            max_timeout=self.max_timeout,
            max_result_chars=self.max_result_chars,
        )
