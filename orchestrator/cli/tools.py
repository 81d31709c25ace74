"""``soong tools``: which tools there are, who gets them and why, and any of them called without a model (EXE-12)."""

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import Columns, emit, listed, say, table
from soong.orchestrator.terminal.console import show as show_result
from soong.shared.core.errors import UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import first_sentence
from soong.shared.tools.surface import RunMode, toolset_of

if TYPE_CHECKING:
    from soong.shared.tools.definition import ToolDefinition
    from soong.shared.tools.registry import ToolRegistry

app = CommandTable()

SCOPE_STARTS = ("/", "~", "host:", "exact:")


class ExportFormat(StrEnum):
    """The provider whose form exported tools have."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


_NAME = typer.Argument(..., metavar="NAME", help="The tool's name, or an alias of it.")
_MODE = typer.Option(None, "--mode", help="What the run is for [its agent's own, else default].")


@app.command("list")
async def list_tools(
    *, role: Role | None = typer.Option(None, "--role", help="Only what this role gets."), is_json: bool = JSON
) -> None:
    """List tools in the order that models see them."""
    async with Api() as api:
        found = await api.from_service("/v1/tools", **({} if role is None else {"role": role.value}))
    if found is None:
        from soong.orchestrator.schemas.tool import ToolsSchema
        from soong.shared.core.settings import load_settings

        found = ToolsSchema.of_home(load_settings(), role).model_dump(mode="json")
    columns: Columns = {
        "tool": "name",
        "permission": "permission",
        "tags": lambda tool: ", ".join(sorted({*tool["tags"]} - {tool["permission"]})),
        "source": "source",
        "what it does": lambda tool: first_sentence(tool["description"]),
    }
    listed(found["items"], columns, is_json=is_json)


@app.command()
def show(name: str = _NAME, *, is_json: bool = JSON) -> None:
    """Show a tool: what it is for, its arguments, its limits, how its calls may end."""
    from soong.orchestrator.cli.tool_call import tool_text
    from soong.orchestrator.client.tool_registry import registered
    from soong.orchestrator.schemas.tool import ToolSchema
    from soong.shared.core.config import with_config
    from soong.shared.core.settings import load_settings

    settings = load_settings()
    config, registry = registered(settings)
    tool = _find(registry, name)
    source = registry.source_of(tool.name)
    document = ToolSchema.of(tool, source=source).model_dump(mode="json")
    show_result(document, lambda: tool_text(tool, source, with_config(settings, config)), is_json=is_json)


@app.command()
def explain(
    *,
    role: Role = typer.Option(Role.WORKER, "--role", help="Whose tool set."),
    agent: str = typer.Option("", "--agent", help="Agent definition [default_worker_agent for a worker]."),
    mode: RunMode | None = _MODE,
    allowed: str | None = typer.Option(
        None, "--allowed-tools", metavar="A,B", help="What a step or dispatch asks for: names or globs."
    ),
    is_json: bool = JSON,
) -> None:
    """Say of every tool whether a run would have it, and which rule decided: what a run's row stores."""
    from soong.orchestrator.client.tool_registry import registered, tool_set
    from soong.shared.core.settings import load_settings
    from soong.shared.tools.deferred import deferred_of

    settings = load_settings()
    config, registry = registered(settings)
    asked = None if allowed is None else tuple(word.strip() for word in allowed.split(",") if word.strip())
    surface = tool_set(registry, config, role, home=settings.home, agent=agent, mode=mode, allowed=asked)
    deferred = deferred_of(registry.select(surface.tools), config.tools)
    for pattern in surface.unknown:
        say(f"no tool is called {pattern!r}; {_suggestion(registry, pattern)}")
    known = {toolset_of(tool.name) for tool in registry.definitions()}
    for name in sorted(config.toolsets.keys() - known):
        say(f"config toolsets.{name} names no toolset; there are {', '.join(sorted(known))}")
    document = {
        "role": role.value,
        "tools": list(surface.tools),
        "decisions": [{"tool": each.tool, "is_in": each.is_in, "rule": each.rule} for each in surface.decisions],
        "unknown": list(surface.unknown),
        "deferred": list(deferred),
    }
    rows = [
        (each.tool, "deferred" if each.tool in deferred else "yes" if each.is_in else "no", each.rule)
        for each in surface.decisions
    ]
    show_result(document, lambda: table(("tool", "has it", "because"), rows, uncut=("because",)), is_json=is_json)


@app.command()
async def export(
    *,
    form: ExportFormat = typer.Option(..., "--format", help="Whose form."),
    run: str = typer.Option("", "--run", metavar="RUN", help="The tools of this run, as its row stores them."),
    agent: str = typer.Option("", "--agent", metavar="NAME", help="The tools of this agent definition."),
    role: Role = typer.Option(Role.MAIN, "--role", help="Whose tool set."),
) -> None:
    """Print tools as a model's API, or MCP, takes them: one JSON document."""
    from soong.orchestrator.client.tool_registry import registered, tool_set
    from soong.orchestrator.direct.exports import anthropic_tools, mcp_tools, openai_tools
    from soong.shared.core.settings import load_settings

    settings = load_settings()
    config, registry = registered(settings)
    if run:
        async with Api() as api:
            names = (await api.get(f"/v1/runs/{await api.find('run', run)}"))["tools"]
    else:
        names = tool_set(registry, config, role, home=settings.home, agent=agent).tools
    write = {"openai": openai_tools, "anthropic": anthropic_tools, "mcp": mcp_tools}[form.value]
    emit(write(registry.select(names)))


@app.command()
async def call(
    name: str = _NAME,
    words: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments, read by the tool's schema."),
    *,
    text: str | None = typer.Option(None, "--args", metavar="JSON|-|@FILE", help="Arguments as a JSON object."),
    project: Path = typer.Option(Path(), "--project", help="Folder that the tool works in."),
    role: Role = typer.Option(Role.MAIN, "--role", help="Call it as this role: only what the role gets."),
    mode: RunMode = typer.Option(RunMode.DEFAULT, "--mode", help="Call it in a run of this mode."),
    allow: list[str] = typer.Option(
        [], "--allow", metavar="[TOOL:]SCOPE", help="Allow it for one folder, file or host; may be repeated."
    ),
    timeout_ms: int | None = typer.Option(
        None, "--timeout-ms", min=1, help="Time of the call [SOONG_TOOL_TIMEOUT_MS]."
    ),
    is_json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Call a tool without a model: the same checks, hooks, permission and record as in a run.

    Exit codes: 0 done, 1 the tool failed, 2 wrong use, 3 denied, 130 interrupted.
    """
    from soong.orchestrator.cli.tool_call import make_call, read_arguments, terminal_callback
    from soong.orchestrator.client.tool_registry import registered
    from soong.orchestrator.direct.bootstrap import DirectRequest  # the pipeline: only a call needs it
    from soong.shared.core.settings import load_settings

    settings = load_settings()
    config, registry = registered(settings, is_callable=True)
    tool = _find(registry, name)
    arguments = read_arguments(tool.name, tool.input_schema, words or [], text)
    request = DirectRequest(
        project=project,
        role=role,
        mode=mode,
        allow=tuple(_rule(tool.name, rule) for rule in allow),
        callback=terminal_callback(),
        channel="terminal",
        timeout=None if timeout_ms is None else timedelta(milliseconds=timeout_ms),
    )
    calling = make_call(settings, config, registry, request, tool.name, arguments, is_json=is_json)
    raise typer.Exit(await calling)


def _find(registry: "ToolRegistry", name: str) -> "ToolDefinition":
    tool = registry.get(name)
    if tool is None:
        raise UsageError(f"there is no tool {name!r}; {_suggestion(registry, name)}")
    return tool


def _suggestion(registry: "ToolRegistry", name: str) -> str:
    from difflib import get_close_matches

    names = [known for tool in registry.definitions() for known in (tool.name, *tool.aliases)]
    last = {known.rpartition(".")[2]: known for known in names}
    close = [last[word] for word in get_close_matches(name.rpartition(".")[2], list(last))]
    close = list(dict.fromkeys((*get_close_matches(name, names), *close)))[:3]
    return f"did you mean {' or '.join(close)}?" if close else "`soong tools list` shows them all"


def _rule(tool: str, rule: str) -> str:
    """Read a rule for this tool: its scope alone will do.
    Raises: UsageError, it speaks of another tool, or is a scope that is none.
    """
    from soong.shared.tools.naming import name_matches

    if rule.startswith(SCOPE_STARTS):
        return f"{tool}:{rule}"
    pattern, _, scope = rule.partition(":")
    if not name_matches(pattern, tool):
        place = Path.cwd() / rule
        hint = f"write {place}, host:NAME or exact:TEXT, or {tool}:SCOPE" if not scope else f"call {pattern}"
        raise UsageError(f"--allow {rule!r} says nothing of {tool}; {hint}")
    return rule
