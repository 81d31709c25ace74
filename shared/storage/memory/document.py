"""A memory as a Markdown file: front matter that a person can read and change, then the text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.front_matter import MAX_FRONT_CHARS, split
from soong.shared.core.jsontext import Json
from soong.shared.toolsets.memory.provider import Memory, MemoryScope

USER_FOLDER: Final = "user"
PROJECTS_FOLDER: Final = "projects"


class BrokenMemoryError(UsageError):
    """A file of the memory folder that holds none. The message says what is wrong with it."""


def written(memory: Memory) -> str:
    """Return the file of a memory."""
    fields: dict[str, Json] = {"id": memory.id, "scope": memory.scope.value}
    if memory.project:
        fields["project"] = memory.project
    fields |= {"tags": list(memory.tags), "created": memory.created, "sources": list(memory.sources)}
    fields["tainted"] = memory.is_tainted
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    return f"---\n{lines}---\n{memory.content}\n"


def read_memory(text: str, name: str) -> Memory:
    """Read the file of that name. Without front matter it is a person's own note, for everywhere.

    Raises:
        BrokenMemoryError: says what is wrong.
    """
    parts = split(text)
    fields = {} if parts is None else _fields(parts.fields)
    project = _text(fields, "project")
    try:
        return Memory(
            content=text if parts is None else parts.body,
            scope=MemoryScope(_text(fields, "scope") or (MemoryScope.PROJECT if project else MemoryScope.USER)),
            tags=_texts(fields, "tags"),
            project=project,
            sources=_texts(fields, "sources"),
            is_tainted=fields.get("tainted", False) is not False,
            created=_text(fields, "created"),
            id=PurePosixPath(name).stem,
        )
    except (UsageError, ValueError) as error:
        raise BrokenMemoryError(str(error)) from error


def _fields(front: str) -> Mapping[str, Json]:
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    if len(front) > MAX_FRONT_CHARS:
        raise BrokenMemoryError(f"its front matter has {len(front)} characters; at most {MAX_FRONT_CHARS} are read")
    if not front.strip():
        return {}
    try:
        value = read_document(front, "front matter").value
    except InvalidPlanError as error:
        raise BrokenMemoryError(f"{error.problems[0].place}: {error.problems[0].problem}") from error
    if not isinstance(value, Mapping):
        raise BrokenMemoryError("its front matter is not a mapping of fields")
    return value


def _text(fields: Mapping[str, Json], field: str) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str):
        raise BrokenMemoryError(f"{field} is not text")
    return value


def _texts(fields: Mapping[str, Json], field: str) -> tuple[str, ...]:
    value = fields.get(field, [])
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BrokenMemoryError(f"{field} is not a list")
    if not all(isinstance(each, str) for each in value):
        raise BrokenMemoryError(f"{field} has an entry that is not text")
    return tuple(map(str, value))
