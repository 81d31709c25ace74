"""A SKILL.md: front matter that says what the skill is and asks for, then the text that the model reads (SKL-01).

What a skill asks for is data: it is shown and grants nothing (PER-10). Fields of other systems are passed over.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.front_matter import MAX_FRONT_CHARS, split
from soong.shared.core.inert import is_seen
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

MAX_NAME_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 1024
MAX_ASKED: Final = 100
MAX_ASKED_CHARS: Final = 200

NAME: Final = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}", re.ASCII)


class BrokenSkillError(UsageError):
    """A SKILL.md that is none. The message says what is wrong with it."""


class SkillText(Value):
    """A read SKILL.md. ``tools`` and ``permissions`` are what it asks for, as it writes them."""

    name: str
    description: str
    tools: tuple[str, ...]
    permissions: tuple[str, ...]
    body: str


def read_skill(text: str, folder_name: str) -> SkillText:
    """Read a SKILL.md of the folder of that name.

    Raises:
        BrokenSkillError: names the field and what it must be.
    """
    parts = split(text)
    if parts is None:
        raise BrokenSkillError("it does not begin with front matter between two lines of ---")
    fields = _fields(parts.fields)
    name = _name(fields, folder_name)
    description = _line(fields, "description", MAX_DESCRIPTION_CHARS)
    if not description:
        raise BrokenSkillError("description is missing; say what the skill is for and when to load it")
    if not parts.body:
        raise BrokenSkillError("there is no text after the front matter")
    tools = _asked(fields, "allowed-tools") or _asked(fields, "allowed_tools")
    return SkillText(name, description, tools, _asked(fields, "permissions"), parts.body)


def _fields(front: str) -> Mapping[str, Json]:
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    if len(front) > MAX_FRONT_CHARS:
        raise BrokenSkillError(f"its front matter has {len(front)} characters; at most {MAX_FRONT_CHARS} are read")
    if not front.strip():
        raise BrokenSkillError("its front matter is empty; it needs a description")
    try:
        # Aliases, anchors, tags, doubled keys and deep nesting are refused there, each with its line.
        value = read_document(front, "front matter").value
    except InvalidPlanError as error:
        first = error.problems[0]
        raise BrokenSkillError(f"{first.place}: {first.problem}") from error
    if not isinstance(value, Mapping):
        raise BrokenSkillError("its front matter is not a mapping of fields")
    return value


def _name(fields: Mapping[str, Json], folder_name: str) -> str:
    name = fields.get("name", folder_name)
    if name != folder_name:
        raise BrokenSkillError(f"name is {str(name)[:MAX_NAME_CHARS]!r}, but its folder is {folder_name!r}")
    return folder_name


def _line(fields: Mapping[str, Json], field: str, max_chars: int) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str):
        raise BrokenSkillError(f"{field} is not text")
    if len(value) > max_chars:
        raise BrokenSkillError(f"{field} has {len(value)} characters; at most {max_chars} are taken")
    return _plain(value)


def _asked(fields: Mapping[str, Json], field: str) -> tuple[str, ...]:
    """Return a list of words: a YAML list, or one text with commas or, without any, spaces between them."""
    value = fields.get(field)
    if value is None:
        return ()
    if isinstance(value, str):
        parts: Sequence[Json] = value.split(",") if "," in value else value.split()
    elif isinstance(value, Sequence):
        parts = value
    else:
        raise BrokenSkillError(f"{field} is neither a list nor text")
    if len(parts) > MAX_ASKED:
        raise BrokenSkillError(f"{field} has {len(parts)} entries; at most {MAX_ASKED} are taken")
    asked = []
    for part in parts:
        if not isinstance(part, str) or len(part) > MAX_ASKED_CHARS:
            raise BrokenSkillError(f"{field} has an entry that is not text of at most {MAX_ASKED_CHARS} characters")
        asked.append(_plain(part))
    return tuple(dict.fromkeys(each for each in asked if each))


def _plain(text: str) -> str:
    """Return text in one line of printable characters: it is shown next to other skills and must not imitate them."""
    return " ".join("".join(char for char in " ".join(text.split()) if is_seen(char)).split())
