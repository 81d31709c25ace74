"""Agent definitions as Claude Code writes them: read where they lie, in a project's folders and in the home (DIS-02).

Their tools are suggestions under other names; what has no meaning here is reported and grants nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from soong.shared.agents.definition import ID, AgentDefinition
from soong.shared.agents.definition_document import DefinitionDocument, read_definition
from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.front_matter import MAX_FRONT_CHARS, split
from soong.shared.core.jsontext import Json

_READ: Final = frozenset({"name", "description", "tools", "model"})
_OURS: Final = frozenset(DefinitionDocument.model_fields) - _READ
"""Fields that only a definition of ours has."""
_THEIRS: Final = frozenset({"tools", "color", "disallowedTools", "permissionMode", "skills", "hooks", "mcpServers"})

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


def read_agent(text: str, path: Path, notes: list[str]) -> AgentDefinition:
    """Read a file of our own form, or as other agents write theirs: by a field of theirs, or fields that are not YAML.

    A file with fields that only ours has is one of ours, and is checked strictly. Raises: InvalidPlanError.
    """
    parts = split(text)
    if parts is not None and len(parts.fields) <= MAX_FRONT_CHARS:
        fields, is_yaml = _claude_fields(parts.fields, path)
        is_theirs = not is_yaml or not _THEIRS.isdisjoint(fields)
        if is_theirs and _OURS.isdisjoint(fields):
            return claude_definition(text, path, notes)
    return read_definition(text, path)


def claude_definition(text: str, path: Path, notes: list[str]) -> AgentDefinition:
    """Read a file as Claude Code writes it: name, description, tools and model; ``notes`` gets what is ignored.

    Raises:
        InvalidPlanError: it has no usable name and description, or no text.
    """
    parts = split(text)
    if parts is None:
        return read_definition(text, path)  # which says what is missing
    fields, _ = _claude_fields(parts.fields, path)
    if ignored := sorted(fields.keys() - _READ):
        notes.append(f"fields that have no meaning here are ignored: {', '.join(ignored)[:200]}")
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


def _claude_fields(text: str, path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the fields, and whether they are YAML. Where not, each line that begins with a name is one."""
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    try:
        value: Json = read_document(f"\n{text}", str(path)).value
        return value if isinstance(value, dict) else {}, True
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
    return {name: "\n".join(lines) for name, lines in found.items()}, False


def _claude_tools(wanted: object) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the tools by their names here, and those that have none; None for the role's own."""
    if wanted is None or wanted in ("", "*"):
        return None, []
    words = wanted if isinstance(wanted, list) else re.split(r"[,\n]", str(wanted))
    names = [re.sub(r"\(.*", "", str(word).strip(" -\t")) for word in words]
    known = dict.fromkeys(_CLAUDE_TOOLS[name] for name in names if name in _CLAUDE_TOOLS)
    return tuple(known), [name for name in names if name and name not in _CLAUDE_TOOLS]
