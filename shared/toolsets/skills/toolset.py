"""internal.list_skills and internal.load_skill: knowledge that a run takes into its context when it needs it (SKL-01).

Loading adds a context node and changes nothing outside, so it is read-only; it widens no tool set and grants nothing
(ETS-01, PER-10).
"""

from pathlib import Path
from typing import Final

import msgspec

from soong.shared.core.config import Config
from soong.shared.core.inert import is_told_apart
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.permissions.taint import METADATA_KEY
from soong.shared.sandbox.paths import valid_text
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ContextNode, ErrorType, TextBlock, ToolResult
from soong.shared.toolsets.skills.document import MAX_NAME_CHARS, SkillDir, SkillEntry, all_skills, load, places

_TAGS: Final = frozenset({"internal", "readonly"})


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
            input_schema={"type": "object", "properties": {}},
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
            input_schema={
                "type": "object",
                "properties": {
                    "name": {
                        "type": "string",
                        "description": "Name of the skill, as internal.list_skills tells it.",
                        "minLength": 1,
                        "maxLength": MAX_NAME_CHARS,
                    }
                },
                "required": ["name"],
            },
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
