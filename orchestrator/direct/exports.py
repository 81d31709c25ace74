"""A session's tools in the forms that providers and protocols take, and the way back (REG-11).

A program that runs an agent of its own offers these and gives each call back: it passes the pipeline of the session,
with validation, hooks, permission, limits and the record, as a call of any agent of ours.
"""

from collections.abc import Mapping, Sequence

from soong.orchestrator.direct.session import DirectSession
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.value import Value
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.naming import NameTable
from soong.shared.tools.result import ToolResult
from soong.shared.tools.results.rendering import for_model


class ExportedTools(Value):
    """The tools that a session can call, as they are when it is asked.

    Providers take neither dots nor long names: :meth:`call` takes their form of a name as well as the canonical one.
    """

    session: DirectSession

    def openai(self) -> list[dict[str, Json]]:
        """Return function tools of OpenAI's chat completions, which many compatible servers take as well."""
        return openai_tools(self.session.tools())

    def anthropic(self) -> list[dict[str, Json]]:
        """Return tools of Anthropic's messages."""
        return anthropic_tools(self.session.tools())

    def mcp(self) -> list[dict[str, Json]]:
        """Return tools of the Model Context Protocol, as a server lists them; their names are the canonical ones.

        The hints are those of the definition: a client that believes them may ask less, this pipeline does not.
        """
        return mcp_tools(self.session.tools())

    async def call(
        self, name: str, arguments: Mapping[str, Json] | str | None = None, *, tool_call_id: str = ""
    ) -> ToolResult:
        """Run a call that a provider's model made; ``arguments`` may be the JSON text that OpenAI sends.
        Raises: UnavailableError, the record cannot be written; a write has not happened.
        """
        names = NameTable(tool.name for tool in self.session.tools())
        return await self.session.call(names.to_canonical(name), arguments, tool_call_id=tool_call_id)


def openai_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Json]]:
    """Return tools as :meth:`ExportedTools.openai` does. Raises: InvalidToolError for a name that has no form there."""
    names = NameTable(tool.name for tool in tools)
    return [
        {
            "type": "function",
            "function": {
                "name": names.to_provider(tool.name),
                "description": description_of(tool),
                "parameters": dict(tool.input_schema),
            },
        }
        for tool in tools
    ]


def anthropic_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Json]]:
    """Return tools as :meth:`ExportedTools.anthropic` does. Raises: as :func:`openai_tools`."""
    names = NameTable(tool.name for tool in tools)
    return [
        {
            "name": names.to_provider(tool.name),
            "description": description_of(tool),
            "input_schema": dict(tool.input_schema),
        }
        for tool in tools
    ]


def mcp_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Json]]:
    """Return tools as :meth:`ExportedTools.mcp` does."""
    return [
        {
            "name": tool.name,
            **({"title": tool.title} if tool.title else {}),
            "description": description_of(tool),
            "inputSchema": dict(tool.input_schema),
            **({} if tool.output_schema is None else {"outputSchema": dict(tool.output_schema)}),
            "annotations": {"readOnlyHint": tool.permission is Permission.READONLY, "openWorldHint": tool.reaches_out},
        }
        for tool in tools
    ]


def export_tools(session: DirectSession) -> ExportedTools:
    """Return the tools of a session of ``open_tools`` for an agent that is not ours."""
    return ExportedTools(session)


def description_of(tool: ToolDefinition) -> str:
    return f"{tool.description}\n\n{tool.prompt}" if tool.prompt else tool.description


def text_for_model(result: ToolResult) -> str:
    """Return a result as one text: what a model reads of it, an error with what to do next."""
    content: Json = for_model(result).content
    return content if isinstance(content, str) else dump(content)
