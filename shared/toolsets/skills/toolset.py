"""internal.list_skills and internal.load_skill: knowledge that a run takes into its context when it needs it (SKL-01).

Loading adds a context node and changes nothing outside, so it is read-only; it widens no tool set and grants nothing
(ETS-01, PER-10).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.jsontext import MAX_FRONT_CHARS, Json, JsonObject, front_matter_of, is_seen, is_told_apart
from soong.shared.core.value import Value
from soong.shared.permissions.rules import METADATA_KEY
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory, opened_file, read_up_to
from soong.shared.sandbox.paths import is_below, valid_text
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ContextNode, ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, string

_TAGS: Final = frozenset({"internal", "readonly"})

MAX_NAME_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 1024
MAX_ASKED: Final = 100
MAX_ASKED_CHARS: Final = 200

NAME: Final = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}", re.ASCII)

SKILL_FILE: Final = "SKILL.md"
USER_FOLDER: Final = "skills"
PROJECT_FOLDER: Final = Path(".soong", "skills")
MAX_SKILL_BYTES: Final = 90 * 1024
"""With its heading it fits into what one call may add to a context."""
MAX_FOLDERS: Final = 500
"""Folders that are read in one place of skills, in the order of names; later ones are ignored."""

Level: TypeAlias = Literal["user", "project"]


class SkillDir(Value):
    """A folder of skills. ``beneath`` is the folder that nothing in it may lead out of; None: links are the user's."""

    folder: Path
    level: Level
    beneath: Path | None = None


class SkillTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter`. ``home`` is Soong's own folder; None: there is none."""

    home: Path | None = None
    config: Config = msgspec.field(default_factory=Config)

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (self._list_skills(), self._load_skill())

    def _places(self, context: ToolContext) -> tuple[SkillDir, ...]:
        return places(self.home, self.config, context.run_dirs.project)

    def _origin(self) -> dict[str, Json]:
        """Mark what is read as a stranger's where a project's skills are among it (PER-21)."""
        return {METADATA_KEY: True} if self.config.skills.project else {}

    def _list_skills(self) -> ToolDefinition:
        async def handle(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
            found = await run_blocking(lambda _stop: all_skills(self._places(context)))
            text = "\n".join(map(_line, found)) or "there are no skills"
            data: Json = {"skills": [_entry(each) for each in found]}
            return ToolResult(context.tool_call_id, (TextBlock(text),), f"{len(found)} skills", data)

        return ToolDefinition(
            name="internal.list_skills",
            title="List skills",
            description=(
                "List the skills that can be loaded with internal.load_skill: name, level (user or project), "
                "description, and the tools each asks for."
            ),
            search_hint="skills knowledge guides how-to available",
            input_schema=arguments(),
            handler=handle,
            permission=Permission.READONLY,
            tags=_TAGS,
            metadata=self._origin(),
        )

    def _load_skill(self) -> ToolDefinition:
        async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
            name = str(call_input["name"])
            return _loaded(context, await run_blocking(lambda _stop: load(self._places(context), name)))

        return ToolDefinition(
            name="internal.load_skill",
            title="Load skill",
            description=(
                "Load a skill by name: its instructions are added to your context. It gives you no more tools and "
                "no permissions; what it asks for is only shown."
            ),
            search_hint="skill instructions context SKILL.md",
            input_schema=arguments(
                "name",
                name=string(
                    "Name of the skill, as internal.list_skills tells it.", minLength=1, maxLength=MAX_NAME_CHARS
                ),
            ),
            handler=handle,
            permission=Permission.READONLY,
            tags=_TAGS,
            metadata=self._origin(),
            errors=(
                ErrorType.FILE_NOT_FOUND,
                ErrorType.LIMIT_EXCEEDED,
                ErrorType.BINARY_FILE,
                ErrorType.NOT_REGULAR_FILE,
                ErrorType.PATH_OUTSIDE_ROOTS,
            ),
            # It adds to the context, and only calls that run alone may (the order of nodes is the order of calls).
            traits=lambda _call_input: Traits(is_read_only=True),
        )


class SkillText(Value):
    """A read SKILL.md. ``tools`` and ``permissions`` are what it asks for, as it writes them."""

    name: str
    description: str
    tools: tuple[str, ...]
    permissions: tuple[str, ...]
    body: str


class SkillEntry(Value):
    """A folder that looks like a skill: its text, or what is wrong with it. ``is_shadowed``: another has its name."""

    name: str
    level: Level
    folder: Path
    text: SkillText | None
    problem: str = ""
    is_shadowed: bool = False


def _loaded(context: ToolContext, skill: SkillEntry) -> ToolResult:
    text = skill.text
    assert text is not None
    folder = valid_text(str(skill.folder))
    said = f"The {skill.level}'s skill {skill.name!r} is loaded; its text follows in your context."
    if text.tools or text.permissions:
        asked = ", ".join((*text.tools, *text.permissions))
        said += f"\nIt asks for: {asked}. Asking grants nothing: what you have are the tools you were given."
    body = f"Skill {skill.name!r} ({skill.level} level). Its other files lie in {folder}\n\n{text.body}"
    data: dict[str, Json] = {**_entry(skill), "folder": folder, "chars": len(text.body)}
    return ToolResult(
        context.tool_call_id,
        (TextBlock(said),),
        f"skill {skill.name!r} loaded",
        data,
        context_nodes=(ContextNode("skill", skill.name, body),),
    )


def _entry(skill: SkillEntry) -> dict[str, Json]:
    entry: dict[str, Json] = {"name": valid_text(skill.name), "level": skill.level}
    if skill.text is None:
        return {**entry, "problem": skill.problem}
    asked: dict[str, Json] = {"allowed_tools": list(skill.text.tools), "permissions": list(skill.text.permissions)}
    shadowed: dict[str, Json] = {"is_shadowed": True} if skill.is_shadowed else {}
    return {**entry, "description": skill.text.description, **asked, **shadowed}


def _line(skill: SkillEntry) -> str:
    name = skill.name if skill.name.isascii() and is_told_apart(skill.name) else ascii(skill.name)
    if skill.text is None:
        return f"- {name[:MAX_NAME_CHARS]} ({skill.level}): cannot be used: {' '.join(skill.problem.split())}"
    asked = ", ".join((*skill.text.tools, *skill.text.permissions))
    line = f"- {name} ({skill.level}): {skill.text.description}" + (f" [asks for: {asked}]" if asked else "")
    return f"{line} [not loadable: a skill of the user has this name]" if skill.is_shadowed else line


class BrokenSkillError(UsageError):
    """A SKILL.md that is none. The message names the problem."""


def read_skill(text: str, folder_name: str) -> SkillText:
    """Read a SKILL.md of the folder of that name. Raises: BrokenSkillError, names the field and what it must be."""
    parts = front_matter_of(text)
    if parts is None:
        raise BrokenSkillError("it does not begin with front matter between two lines of ---")
    fields = _fields(parts.fields)
    if (name := fields.get("name", folder_name)) != folder_name:
        raise BrokenSkillError(f"name is {str(name)[:MAX_NAME_CHARS]!r}, but its folder is {folder_name!r}")
    said = fields.get("description", "")
    if not isinstance(said, str):
        raise BrokenSkillError("description is not text")
    if len(said) > MAX_DESCRIPTION_CHARS:
        raise BrokenSkillError(f"description has {len(said)} characters; at most {MAX_DESCRIPTION_CHARS} are taken")
    description = _plain(said)
    if not description:
        raise BrokenSkillError("description is missing; say what the skill is for and when to load it")
    if not parts.body:
        raise BrokenSkillError("there is no text after the front matter")
    tools = _asked(fields, "allowed-tools") or _asked(fields, "allowed_tools")
    return SkillText(folder_name, description, tools, _asked(fields, "permissions"), parts.body)


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


def places(home: Path | None, config: Config, project: Path) -> tuple[SkillDir, ...]:
    """Return where to look, the first that has a name wins."""
    own = () if home is None else (home / USER_FOLDER,)
    found = [SkillDir(folder, "user") for folder in (*own, *map(Path, config.skills.folders))]
    if config.skills.project:
        found.append(SkillDir(project / PROJECT_FOLDER, "project", project))
    return tuple(found)


def all_skills(where: Iterable[SkillDir]) -> list[SkillEntry]:
    """Return every skill of every place, by level and name; one that is broken is there with its problem."""
    found: list[SkillEntry] = []
    seen: set[str] = set()
    for place in where:
        here = [_looked_at(place, name) for name in skill_names(place)]
        found += [replace(each, is_shadowed=each.name in seen) for each in here]
        seen.update(each.name for each in here)
    return found


def skill_names(place: SkillDir) -> list[str]:
    """Return the names of the folders of a place that have a SKILL.md, in order; none where there is no place."""
    try:
        folder = _resolved(place, place.folder)
        with opened_directory(folder) as descriptor, os.scandir(descriptor) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except (PathRefusedError, ToolError, OSError):
        return []
    return [name for name in names[:MAX_FOLDERS] if os.path.lexists(folder / name / SKILL_FILE)]


def load(where: Iterable[SkillDir], name: str) -> SkillEntry:
    """Return the skill that a name means.
    Raises: ToolError, there is none, naming those there are; or it cannot be used, saying why.
    """
    known: dict[str, SkillDir] = {}
    for place in where:
        for each in skill_names(place):
            known.setdefault(each, place)
    if name not in known:
        names = ", ".join(map(_shown, known)) or "none"
        raise ToolError(ErrorType.FILE_NOT_FOUND, f"there is no skill {_shown(name)}", hint=f"known: {names}")
    place = known[name]
    try:
        return SkillEntry(name, place.level, place.folder / name, _read(place, name))
    except BrokenSkillError as error:
        raise ToolError(ErrorType.EXECUTION_FAILED, f"the skill {_shown(name)} cannot be used: {error}") from error


def _looked_at(place: SkillDir, name: str) -> SkillEntry:
    folder = place.folder / name
    try:
        return SkillEntry(name, place.level, folder, _read(place, name))
    except (BrokenSkillError, PathRefusedError, ToolError) as error:
        return SkillEntry(name, place.level, folder, None, str(error))
    except OSError as error:
        return SkillEntry(name, place.level, folder, None, error.strerror or type(error).__name__)


def _read(place: SkillDir, name: str) -> SkillText:
    if not NAME.fullmatch(name):
        raise BrokenSkillError("its folder's name is not made of a-z, 0-9, '_' and '-', at most 64 characters")
    folder = _resolved(place, place.folder / name)
    file = Path(os.path.realpath(folder / SKILL_FILE))
    if not is_below(file, folder):
        raise ToolError(ErrorType.PATH_OUTSIDE_ROOTS, f"{SKILL_FILE} of {name!r} is a link out of the skill's folder")
    with opened_file(file) as descriptor:
        raw = read_up_to(descriptor, MAX_SKILL_BYTES + 1)
    if len(raw) > MAX_SKILL_BYTES:
        raise ToolError(ErrorType.LIMIT_EXCEEDED, f"{SKILL_FILE} of {name!r} has more than {MAX_SKILL_BYTES} bytes")
    if b"\0" in raw:
        raise ToolError(ErrorType.BINARY_FILE, f"{SKILL_FILE} of {name!r} is a binary file")
    try:
        return read_skill(raw.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise ToolError(ErrorType.BINARY_FILE, f"{SKILL_FILE} of {name!r} is not UTF-8 (byte {error.start})") from error


def _resolved(place: SkillDir, folder: Path) -> Path:
    resolved = Path(os.path.realpath(folder))
    if place.beneath is not None and not is_below(resolved, place.beneath):
        raise PathRefusedError(
            PathRefusal.OUTSIDE, str(folder), "leads out of the project; a project's skill stays in it"
        )
    return resolved


def _shown(name: str) -> str:
    """Return a name for messages: quoted, escaped where it is not plain."""
    return ascii(name[:64])
