"""The code tools as one source (REG-07, REG-12)."""

from dataclasses import dataclass

from shared.config import Config
from shared.sandbox.paths import PathPolicy
from shared.tools.definition import ToolDefinition
from shared.toolsets.code.list_dir import list_dir_tool
from shared.toolsets.code.read_file import read_file_tool
from shared.toolsets.code.search import search_tool
from shared.toolsets.code.write_file import write_file_tool


def code_tools(policy: PathPolicy | None = None, config: Config | None = None) -> tuple[ToolDefinition, ...]:
    """Return the code tools under one policy; without one, the default patterns and no home of our own."""
    rules, wanted = policy or PathPolicy(), config or Config()
    read_file = read_file_tool(rules, instruction_files=wanted.instructions.files)
    return (list_dir_tool(rules), read_file, search_tool(rules), write_file_tool(rules))


@dataclass(frozen=True, slots=True)
class CodeTools:
    """A :class:`shared.tools.definition.ToolAdapter` over :func:`code_tools`."""

    policy: PathPolicy | None = None
    config: Config | None = None

    def tools(self) -> tuple[ToolDefinition, ...]:
        return code_tools(self.policy, self.config)
