"""A session's tools as a toolset of Pydantic AI: agents of another library, with our permission and record (REG-11)."""

from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition as PydanticTool
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from soong.orchestrator.direct.exports import description_of, text_for_model
from soong.orchestrator.direct.session import DirectSession
from soong.shared.tools.definition import Permission
from soong.shared.tools.naming import NameTable

_ANYTHING = SchemaValidator(core_schema.any_schema())
"""The session validates arguments by the tool's own schema, and reports what is wrong with them."""


class SessionToolset(AbstractToolset[Any]):
    """Every call passes the session's pipeline. The failure of a call is its result, which the model reads."""

    def __init__(self, session: DirectSession) -> None:
        self.session = session

    @property
    def id(self) -> str:
        return "soong"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools under names that every provider takes; those that write run one at a time."""
        del ctx
        names = NameTable(tool.name for tool in self.session.tools())
        return {
            names.to_provider(tool.name): ToolsetTool(
                toolset=self,
                tool_def=PydanticTool(
                    name=names.to_provider(tool.name),
                    description=description_of(tool),
                    parameters_json_schema=dict(tool.input_schema),
                    sequential=tool.permission is Permission.WRITE,
                    metadata={"tool": tool.name},
                ),
                max_retries=0,
                args_validator=_ANYTHING,
            )
            for tool in self.session.tools()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Run a call. Raises: UnavailableError, the record cannot be written; a write has not happened."""
        canonical = str((tool.tool_def.metadata or {}).get("tool", name))
        return text_for_model(await self.session.call(canonical, tool_args, tool_call_id=ctx.tool_call_id or ""))


def pydantic_ai_toolset(session: DirectSession) -> AbstractToolset[Any]:
    """Return the tools of a session of ``open_tools`` for ``Agent(toolsets=[…])``."""
    return SessionToolset(session)
