"""Agent definitions that a project brings with it (DIS-02): they describe agents and grant nothing.

Read from ``.soong/agents`` and ``.claude/agents`` of the project. Their ids begin with ``project.`` or ``claude.``, so
that none can take the place of a user's. Who wrote the project does not decide what its user pays and whom its content
is sent to: a model is taken only where the user's configuration lists it, and limits only where they are lower.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from soong.shared.agents.definition import ID, AgentDefinition, AgentDefinitionRegistry, AgentLimits
from soong.shared.agents.definition_document import read_definition
from soong.shared.agents.definition_files import DefinitionFile, definition_file
from soong.shared.core.config import AgentsConfig
from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.front_matter import split
from soong.shared.core.jsontext import Json
from soong.shared.sandbox.paths import is_below

PROJECT_FOLDER: Final = Path(".soong", "agents")
CLAUDE_FOLDER: Final = Path(".claude", "agents")
PREFIXES: Final = ("project.", "claude.")
MAX_FILES: Final = 100
"""Of each folder that are read, in the order of their names."""

_CLAUDE_TOOLS: Final[Mapping[str, str]] = {
    "Read": "code.read_file",
    "Grep": "code.search",
    "Glob": "code.list_dir",
    "LS": "code.list_dir",
    "Edit": "code.edit_file",
    "MultiEdit": "code.edit_file",
    "Write": "code.write_file",
    "Bash": "code.run_command",
    "Skill": "internal.load_skill",
}
"""Tools of Claude Code by their names here."""

_FIELD = re.compile(r"([A-Za-z_-]+):[ \t]*(.*)")
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
    """Return what may be named in a project: what is known everywhere, and the project's own definitions."""
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
    except (OSError, ValueError):  # no such folder, or text that no path has: who needs the project says so
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


# -- files of Claude Code
def claude_file(path: Path) -> DefinitionFile:
    """Read a file as Claude Code writes it: name, description, tools and model; other fields are its own business."""
    notes: list[str] = []

    def read(text: str, place: Path) -> AgentDefinition:
        return _claude_definition(text, place, notes)

    found = definition_file(path, read)
    return replace(found, notes=tuple(notes) if found.definition else ())


def _claude_definition(text: str, path: Path, notes: list[str]) -> AgentDefinition:
    """Raises: InvalidPlanError."""
    parts = split(text)
    if parts is None:
        return read_definition(text, path)  # which says what is missing
    fields = _claude_fields(parts.fields, path)
    wanted, unknown = _claude_tools(fields.get("tools"))
    if unknown:
        notes.append(f"tools that are not known here are left out: {', '.join(unknown)}")
    if fields.get("model") not in (None, "", "inherit"):
        notes.append(f"its model {str(fields['model'])[:80]!r} is a name of Claude Code; the task's model is used")
    name = str(fields.get("name") or path.stem).lower()
    head = {"name": name, "description": " ".join(str(fields.get("description") or "").split())[:500]}
    if not re.fullmatch(ID, name) or not head["description"]:
        problem = Problem(str(path), "it has no usable `name` and `description`", "write both in its front matter")
        raise InvalidPlanError((problem,))
    return AgentDefinition(
        id=name,
        name=name,
        description=head["description"],
        instructions=_body(parts.body, path),
        suggested_tools=wanted,
        source=str(path),
    )


def _body(body: str, path: Path) -> str:
    if not body:
        raise InvalidPlanError((Problem(str(path), "there is no text after the front matter", "write it there"),))
    return body


def _claude_fields(text: str, path: Path) -> Mapping[str, Any]:
    """Return the fields. Descriptions there are often no YAML: then each line that begins with a name is a field."""
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    try:
        value: Json = read_document(f"\n{text}", str(path)).value
        if isinstance(value, dict):
            return value
    except InvalidPlanError:
        pass
    found: dict[str, list[str]] = {}
    last = ""
    for line in text.splitlines():
        field = _FIELD.match(line)
        if field is not None:
            last = field[1]
            found[last] = [field[2]]
        elif last:
            found[last].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def _claude_tools(wanted: object) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the tools by their names here, and those that have none; None for the role's own."""
    if wanted is None or wanted in ("", "*"):
        return None, []
    words = wanted if isinstance(wanted, list) else re.split(r"[,\n]", str(wanted))
    names = [re.sub(r"\(.*", "", str(word).strip(" -\t")) for word in words]
    known = dict.fromkeys(_CLAUDE_TOOLS[name] for name in names if name in _CLAUDE_TOOLS)
    return tuple(known), [name for name in names if name and name not in _CLAUDE_TOOLS]
