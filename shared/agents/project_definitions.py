"""Agent definitions that a project brings with it (DIS-02): they describe agents and grant nothing.

Read from ``.soong/agents`` and ``.claude/agents`` of the project. Their ids begin with ``project.`` or ``claude.``, so
that none can take the place of a user's. A project's author does not decide what its user pays and whom its content is
sent to: a model is taken only if the user's configuration lists it, and limits only if they are lower.
"""

import os
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.definition import AgentDefinitionRegistry, AgentLimits
from soong.shared.agents.definition_files import DefinitionFile, claude_file, definition_file
from soong.shared.core.config import AgentsConfig
from soong.shared.core.errors import Problem
from soong.shared.sandbox.paths import is_below

PROJECT_FOLDER: Final = Path(".soong", "agents")
CLAUDE_FOLDER: Final = Path(".claude", "agents")
PREFIXES: Final = ("project.", "claude.")
MAX_FILES: Final = 100
"""Files of each folder that are read, in the order of their names."""

_LIMITING: Final = frozenset({"tokens", "cost_usd"})
"""Limits that are none unless somebody sets them: setting one only takes away."""


def project_definition_files(project: Path, config: AgentsConfig) -> list[DefinitionFile]:
    """Read the definitions of a project, in the order of their ids' kinds and names; none where there are none."""
    if not config.project:
        return []
    own = (_restricted(file, PREFIXES[0], config) for file in _files(project, PROJECT_FOLDER, definition_file))
    claude = (_restricted(file, PREFIXES[1], config) for file in _files(project, CLAUDE_FOLDER, claude_file))
    found: dict[str, DefinitionFile] = {}
    for file in (*own, *claude):
        name = str(file.path) if file.definition is None else file.definition.id
        if name in found:
            problem = Problem(str(file.path), f"{found[name].path} has the id {name!r} too", "rename one")
            found[str(file.path)] = DefinitionFile(file.path, None, (problem,))
        else:
            found[name] = file
    return list(found.values())


def with_project(known: AgentDefinitionRegistry, project: Path, config: AgentsConfig) -> AgentDefinitionRegistry:
    """Return the definitions of a project: those known everywhere, and the project's own."""
    files = project_definition_files(project, config)
    own = [file.definition for file in files if file.definition is not None and file.definition.id not in known.ids]
    return AgentDefinitionRegistry([*known, *own]) if own else known


def is_of_project(definition: str) -> bool:
    """Say whether an id is of a definition that a project brought: a run of it has read what strangers wrote."""
    return definition.startswith(PREFIXES)


def _files(project: Path, folder: Path, read: Callable[[Path], DefinitionFile]) -> Iterable[DefinitionFile]:
    try:
        names = os.listdir(f"{project}/{folder}")  # noqa: PTH208  # of every plan; most projects have none
        real = project.resolve()
    except (OSError, ValueError):  # no such folder, or not a path: the user of the project raises
        return []
    paths = sorted(project / folder / name for name in names if name.endswith(".md") and not name.startswith("."))
    return [read(path) if is_below(path.resolve(), real) else _leads_out(path) for path in paths[:MAX_FILES]]


def _leads_out(path: Path) -> DefinitionFile:
    problem = Problem(str(path), "it is a link to a place outside the project", "put the file itself there")
    return DefinitionFile(path, None, (problem,))


def _restricted(file: DefinitionFile, prefix: str, config: AgentsConfig) -> DefinitionFile:
    """Return a file's definition under its project's name, without what a project does not decide."""
    found = file.definition
    if found is None:
        return file
    notes = list(file.notes)
    model = found.model
    if model and not _may_choose(model, config):
        notes.append(
            f"its model {model!r} is not taken; list it in [agents] project_models of config.toml, if you want"
        )
        model = ""
    fallbacks = found.fallback_models
    if fallbacks and (left_out := [one for one in fallbacks if not _may_choose(one, config)]):
        notes.append(f"its fallback models {left_out} are not taken; [agents] project_models does not list them")
        # Without one of its own that it may choose, those of the configuration hold.
        fallbacks = tuple(one for one in fallbacks if one not in left_out) or None
    standard = AgentLimits()
    limits = {
        name: value if name in _LIMITING else min(value, getattr(standard, name))
        for name, value in found.limits.items()
    }
    notes += [f"its limit {name} is taken as {limits[name]:g}" for name in limits if limits[name] != found.limits[name]]
    definition = replace(
        found, id=f"{prefix}{found.id}", name=found.id, model=model, limits=limits, fallback_models=fallbacks
    )
    return replace(file, definition=definition, notes=tuple(notes))


def _may_choose(model: str, config: AgentsConfig) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in config.project_models)
