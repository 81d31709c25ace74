"""What the official conformance suite expects a server to have, mounted on our server class."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Annotated, Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    PromptReference,
    ResourceTemplateReference,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import Field

from soong.orchestrator.mcp.api import ServerState, SoongContext
from soong.orchestrator.mcp.server import ToolEntry, make_server
from soong.shared.permissions.access.token import Right
from tests.mcp.suite_questions import QUESTIONS, question_in_a_prompt

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
SCHEMA: Final[Mapping[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class SchemaEntry(ToolEntry):
    """A tool whose input schema is written by hand."""

    def made(self) -> Tool:
        tool = super().made()
        tool.parameters = dict(SCHEMA)
        return tool


# -- tools
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


def test_image_content() -> list[ImageContent]:
    """Return an image."""
    return [ImageContent(type="image", data=PIXEL, mime_type="image/png")]


def test_audio_content() -> list[AudioContent]:
    """Return a sound."""
    return [AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def test_embedded_resource() -> list[EmbeddedResource]:
    """Return a resource."""
    return [_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return a text, an image and a resource."""
    return [
        TextContent(type="text", text="Multiple content types test:"),
        ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        _embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}'),
    ]


async def test_tool_with_logging(ctx: SoongContext) -> str:
    """Log three messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
    return "logged"


async def test_tool_with_progress(ctx: SoongContext) -> str:
    """Report progress."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100, f"Completed step {progress} of 100")
    return "done"


def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "",  # noqa: PT028  # a tool
) -> str:
    """Return an argument that is sent as a header too."""
    return f"region={region}"


async def test_missing_capability(ctx: SoongContext) -> str:
    """Need a client that can sample."""
    known = ctx.session.client_capabilities
    if known is None or known.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="the client cannot sample", data=needed)
    return "the client can sample"


def json_schema_2020_12_tool() -> str:
    """Have a schema with the keywords of JSON Schema 2020-12."""
    return "json_schema_2020_12_tool"


async def test_reconnection(ctx: SoongContext) -> str:
    """Close the stream of the answer before the answer."""
    await ctx.info("Before disconnect")
    await ctx.close_sse_stream()
    return "Reconnection test completed"


async def test_trigger_tool_change(ctx: SoongContext) -> str:
    """Add a tool, take it away, and tell the clients."""
    ctx.mcp_server.add_tool(_changing, name="test_dynamic_tool")
    ctx.mcp_server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "changed"


async def test_trigger_prompt_change(ctx: SoongContext) -> str:
    """Add a prompt, take it away, and tell the clients."""
    ctx.mcp_server.add_prompt(Prompt.from_function(_changing, name="test_dynamic_prompt"))
    ctx.mcp_server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "changed"


def _changing() -> str:
    """Do nothing."""
    return ""


_PLAIN: Final = (
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_tool_with_logging,
    test_tool_with_progress,
    test_error_handling,
    test_x_mcp_header,
    test_missing_capability,
    test_reconnection,
    test_trigger_tool_change,
    test_trigger_prompt_change,
    *QUESTIONS,
)


def suite_server(state: ServerState) -> MCPServer[ServerState]:
    """Return our server with what the suite looks for, and none of its own tools."""
    entries = [ToolEntry(function, Right.READ, function.__name__) for function in _PLAIN]
    server = make_server(state, [*entries, SchemaEntry(json_schema_2020_12_tool, Right.READ, "A schema")])
    _add_resources(server)
    _add_prompts(server)
    _add_methods(server)
    return server


def _add_resources(server: MCPServer[ServerState]) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return b64decode(PIXEL)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        return "Watched resource content"


def _add_prompts(server: MCPServer[ServerState]) -> None:
    def said(text: str) -> UserMessage:
        return UserMessage(role="user", content=TextContent(type="text", text=text))

    @server.prompt()
    def test_simple_prompt() -> list[UserMessage]:
        """Say one thing."""
        return [said("This is a simple prompt for testing.")]

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        """Say two arguments."""
        return [said(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803  # the suite's name
        """Show a resource."""
        shown = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(role="user", content=shown), said("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """Show an image."""
        image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
        return [UserMessage(role="user", content=image), said("Please analyze the image above.")]

    server.add_prompt(Prompt.from_function(question_in_a_prompt, name="test_input_required_result_prompt"))


def _add_methods(server: MCPServer[ServerState]) -> None:
    """Serve the methods that a server of the handshake may have and Soong's has not."""

    async def level(_ctx: ServerRequestContext[Any, Any], _params: SetLevelRequestParams) -> EmptyResult:
        return EmptyResult()

    async def subscribe(_ctx: ServerRequestContext[Any, Any], _params: SubscribeRequestParams) -> EmptyResult:
        return EmptyResult()

    async def unsubscribe(_ctx: ServerRequestContext[Any, Any], _params: UnsubscribeRequestParams) -> EmptyResult:
        return EmptyResult()

    low = server._lowlevel_server  # the SDK has no public way to serve these
    low.add_request_handler("logging/setLevel", SetLevelRequestParams, level)
    low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)

    @server.completion()  # type: ignore[no-untyped-call,untyped-decorator]  # the SDK leaves it so
    async def complete(
        _ref: PromptReference | ResourceTemplateReference,
        _argument: CompletionArgument,
        _context: CompletionContext | None,
    ) -> Completion:
        return Completion(values=[], total=0, has_more=False)
