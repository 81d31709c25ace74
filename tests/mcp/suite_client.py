"""Our client as the conformance suite starts it: ``suite_client.py URL`` calls each tool of the suite's server."""

import asyncio
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from soong.shared.core.config import parse_config
from soong.shared.core.timing import SystemClock
from soong.shared.tools.ports import Verdict
from soong.shared.toolsets.mcp.catalogue import LoginFolder
from soong.shared.toolsets.mcp.login_flow import LoopbackReceiver, log_in
from tests.integration.mcp.scene import McpScene, mcp_scene

DOCUMENT = "https://conformance-test.local/client-metadata.json"
EXAMPLES = {"string": "text", "integer": 5, "number": 5, "boolean": True, "object": {}, "array": []}


def wire() -> str:
    revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    return "stateless" if revision >= "2026-07-28" else "handshake"


def wanted(scene: McpScene) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls that the scenario names, else one of each tool with an example of each argument."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    tools = {str(one.metadata["native_name"]): one for one in scene.registry.definitions() if "mcp." in one.name}
    for call in context.get("toolCalls", ()):
        if call["name"] in tools:
            # Null is not a value of these arguments' types: the pipeline refuses it, so it is left out.
            yield tools[call["name"]].name, {name: one for name, one in call["arguments"].items() if one is not None}
    for one in () if "toolCalls" in context else tools.values():
        arguments: Any = one.input_schema.get("properties", {})
        given = {name: EXAMPLES.get(schema.get("type", ""), "text") for name, schema in arguments.items()}
        if "schema" in given:  # a tool that shows what a client has kept of another's schema
            given["schema"] = tools["json_schema_2020_12_tool"].metadata["native_schema"]
        yield one.name, given


def section(url: str) -> str:
    """Return the configuration: the server, and for scenarios of authorization the client that they know."""
    lines = ["[mcp.servers.t]", f'url = "{url}"', f'protocol = "{wire()}"', "timeout_s = 20"]
    if is_about_logins():
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
        lines += ["[mcp.servers.t.oauth]", f'client_metadata_url = "{DOCUMENT}"']
        if "client_id" in context:
            os.environ["SUITE_SECRET"] = context["client_secret"]
            lines += [f'client_id = "{context["client_id"]}"', 'client_secret = "env:SUITE_SECRET"']
    return "\n".join(lines)


def is_about_logins() -> bool:
    return os.environ.get("MCP_CONFORMANCE_SCENARIO", "").startswith("auth/")


async def logged_in(home: Path, text: str, scope: str = "") -> None:
    """Log in like a person whose browser is sent on by the authorization server at once."""

    async def visit(url: str) -> None:
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            await browser.get(url)

    config = parse_config(text).mcp.servers["t"]
    async with LoopbackReceiver.listening() as receiver:
        login = await log_in("t", config, receiver, visit, SystemClock(), scope=scope)
    LoginFolder(home).write(login)


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = section(url)
        if is_about_logins():
            await logged_in(Path(folder) / "home", config)
        async with mcp_scene(Path(folder), config) as scene:
            # A person who accepts what a server asks, without a word of their own.
            scene.gate.verdict = Verdict(is_allowed=True, author="person")
            snapshot = scene.servers.snapshot("t")
            if snapshot is None or snapshot.problem:
                sys.exit(snapshot.problem if snapshot else "the server was not asked")
            for name, arguments in wanted(scene):
                result = await scene.call(name, **arguments)
                command = re.search("`(soong mcp login t[^`]*)`", result.error.message if result.error else "")
                if command is not None:  # typed as a person would
                    words = shlex.split(command[1])
                    await logged_in(scene.home, config, words[-1] if "--scope" in words else "")
                    result = await scene.call(name, **arguments)
                sys.stdout.write(f"{name}: {result.error or 'ok'}\n")
            resources = await scene.call("internal.list_mcp_resources", server="t")
            for each in resources.data["resources"] if isinstance(resources.data, dict) else ():
                await scene.call("internal.read_mcp_resource", server="t", uri=each["uri"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
