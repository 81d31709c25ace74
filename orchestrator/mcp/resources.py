"""What can be read by address: tasks, runs and artifacts, for clients that attach resources to a conversation."""

import json
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError

from soong.orchestrator.mcp.api import ApiProblemError, ServerState, SoongContext, api_of
from soong.orchestrator.mcp.texts import path

JSON = "application/json"
MAX_BYTES = 200_000


def add_resources(server: MCPServer[ServerState]) -> None:
    """Add the templates of the addresses that can be read."""

    @server.resource("soong://tasks/{task}", name="task", title="A task", mime_type=JSON)
    async def task_resource(task: str, ctx: SoongContext) -> str:
        """The status and the steps of a task, with their outputs."""
        return await _read(ctx, "tasks", task)

    @server.resource("soong://tasks/{task}/result", name="task-result", title="The result of a task", mime_type=JSON)
    async def result_resource(task: str, ctx: SoongContext) -> str:
        """The answer, outputs, files written, calls denied and failures of a task."""
        return await _read(ctx, "tasks", task, "result")

    @server.resource("soong://runs/{run}", name="run", title="A run", mime_type=JSON)
    async def run_resource(run: str, ctx: SoongContext) -> str:
        """The lineage, usage and tools of a run."""
        return await _read(ctx, "runs", run)

    @server.resource("soong://runs/{run}/transcript", name="run-transcript", title="A run's transcript", mime_type=JSON)
    async def transcript_resource(run: str, ctx: SoongContext) -> str:
        """The first 50 nodes of a run's transcript; the tool read_run has the others."""
        return await _read(ctx, "runs", run, "nodes")

    @server.resource("soong://artifacts/{digest}", name="artifact", title="An artifact", mime_type="text/plain")
    async def artifact_resource(digest: str, ctx: SoongContext) -> str | bytes:
        """The first 200,000 bytes of an artifact; the tool read_artifact has the others."""
        document = await _document(ctx, "artifacts", digest, limit=MAX_BYTES)
        return str(document["text"]) if document["text"] is not None else str(document["base64"])


async def _read(ctx: SoongContext, *segments: str) -> str:
    text = json.dumps(await _document(ctx, *segments), ensure_ascii=False, indent=1)
    if len(text) > MAX_BYTES:
        raise ResourceError(f"it has more than {MAX_BYTES:,} characters; read it page by page with the tools")
    return text


async def _document(ctx: SoongContext, *segments: str, **query: int) -> dict[str, Any]:
    try:
        return dict((await (await api_of(ctx)).call("GET", path(*segments), query=query)).document)
    except ApiProblemError as error:
        kind = ResourceNotFoundError if error.status == 404 else ResourceError
        raise kind(str(error)) from None
    except ToolError as error:
        raise ResourceNotFoundError(str(error)) from None
