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


class CodeTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter`: reading, listing, searching and writing files of a project,
    and running programs, all under one policy.
    """

    policy: PathPolicy = msgspec.field(default_factory=PathPolicy)
    config: Config = msgspec.field(default_factory=Config)
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    max_timeout: timedelta = MAX_TIMEOUT
    max_result_chars: int = MAX_PAGE_CHARS

    def tools(self) -> tuple[ToolDefinition, ...]:
        policy, commands, files = self.policy, self.config.commands, self.config.instructions.files
        limit = min(timedelta(milliseconds=commands.timeout_ms), self.max_timeout)
        if self.config.network.mode == "off":
            commands = commands.model_copy(update={"sandbox_network": ()})
        return (
            edit_file_tool(policy),
            list_dir_tool(policy),
            read_file_tool(policy, max_page_chars=self.max_result_chars, instruction_files=files),
            CommandTool(policy, self.runner, commands, self.redactor, limit).definition(),
            search_tool(policy),
            write_file_tool(policy),
        )
