"""What this worker announces of itself beyond what every one can: its tools, its functions, its projects (CARD-2)."""

import os
from collections.abc import Iterable
from pathlib import Path

from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.scripted import known_scripts
from soong.shared.engine.wire.capabilities import catalogue_of, functions_needed, project_needed, tools_needed
from soong.shared.sandbox.marked_project import project_id
from soong.shared.tools.registry import ToolRegistry

log = get_logger(__name__)


def abilities(registry: ToolRegistry, settings: Settings, servers: Iterable[str] = ()) -> tuple[str, ...]:
    """Return each tool and function, the catalogue as a whole, and the projects whose marks are here.

    ``servers`` are the MCP servers that are switched on: one that is down now may be up when a step calls it.
    """
    schemas: dict[str, Json] = {tool.name: tool.input_schema for tool in registry.definitions()}
    projects = [need for path in settings.projects for need in _project_at(path)]
    return (
        *tools_needed((*schemas, *(f"mcp.{server}.*" for server in servers))),
        catalogue_of(schemas),
        *functions_needed((*known_functions(), *known_scripts())),
        *projects,
    )


def _project_at(path: str) -> tuple[str, ...]:
    """Return what a worker with this folder announces; a folder without a mark proves nothing."""
    folder = Path(os.path.realpath(Path(path).expanduser()))
    found = project_id(folder)
    if not found:
        log.warning("project_unmarked", folder=str(folder))
    return project_needed(found, str(folder))
