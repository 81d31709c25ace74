"""Agent definitions that users write: Markdown files with front matter in ``${SOONG_AGENT_HOME}/agents`` (DIS-02).

The fields describe the agent and what it wants, the text is its instructions. A file that cannot be used is listed with
its problems, and the others are used.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from msgspec.structs import fields
from pydantic import BeforeValidator, Field

from soong.shared.agents.definition import (
    ID,
    AgentDefinition,
    AgentDefinitionRegistry,
    ModelOptions,
    builtin_definitions,
)
from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.jsontext import MAX_FRONT_CHARS, Json, fault, front_matter_of
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.agent_kind import SettingsDocument
from soong.shared.engine.tasks.plan.fields import PlanModel, Text, Texts, Title
from soong.shared.engine.tasks.plan.validation import DocumentReader, Expected, kind_of
from soong.shared.engine.tasks.problems import Document, Hint, Problems
from soong.shared.sandbox.descriptors import PathRefusedError, opened_file
from soong.shared.tools.surface import RunMode

FOLDER: Final = "agents"
MAX_BYTES: Final = 256 * 1024
MAX_FILES: Final = 500
"""Files of the folder that are read, in the order of their names."""

_READ: Final = frozenset({"name", "description", "tools", "model"})

_ID_WORDS: Final = "1 to 64 lower-case letters, digits, `_` or `-`"
AgentId: TypeAlias = Annotated[str, Field(pattern=f"^{ID}$"), Expected(_ID_WORDS)]


def _words(value: Any) -> Any:
    """Take one text with commas for a list."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


ModelName: TypeAlias = Annotated[
    str, Field(pattern=r"^[^\s:]{1,100}:\S{1,200}$"), Expected("a model as provider:name, such as openai:gpt-5")
]


class LimitsDocument(PlanModel):
    """Limits of the agent's runs; a missing one is the deployment's."""

    max_turns: Annotated[int, Field(ge=1, le=10_000), Expected("an integer from 1 to 10000")] | None = None
    max_repeated_failures: Annotated[int, Field(ge=0, le=1000), Expected("an integer from 0 to 1000")] | None = None
    max_reasks: Annotated[int, Field(ge=0, le=20), Expected("an integer from 0 to 20")] | None = None
    max_continuations: Annotated[int, Field(ge=0, le=20), Expected("an integer from 0 to 20")] | None = None
    parallel_reads: Annotated[int, Field(ge=1, le=100), Expected("an integer from 1 to 100")] | None = None
    tokens: Annotated[int, Field(ge=0, le=10**12), Expected("an integer from 0")] | None = Field(
        default=None, description="Most tokens that a run reads and writes in all."
    )
    cost_usd: Annotated[float, Field(ge=0, le=1e9), Expected("a number from 0")] | None = Field(
        default=None, description="Most US dollars that the model requests of a run cost in all."
    )


class DefinitionDocument(SettingsDocument):
    """The front matter of a definition."""

    name: AgentId | None = Field(default=None, description="The id; the file's name without `.md` when absent.")
    description: Title = Field(description="What the agent is for: plans and other agents choose it by this.")
    model: Text = Field(default="", description="provider:name; else the model of the task.")
    fallback_models: (
        Annotated[tuple[ModelName, ...], Field(strict=False, max_length=5), BeforeValidator(_words)] | None
    ) = Field(
        default=None,
        description="Models that continue its runs, in their order, where the provider of its model fails for good; "
        "else those of the configuration.",
    )
    suggested_tools: Annotated[Texts, BeforeValidator(_words)] | None = Field(
        default=None, description="Tools it wants, by name or glob. A preference: policy and mode decide."
    )
    mode: Annotated[RunMode, Field(strict=False)] = Field(
        default=RunMode.DEFAULT, description="readonly: no tool that changes anything."
    )
    limits: LimitsDocument | None = Field(default=None, description="Limits of its runs.")


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


class DefinitionFile(Value):
    """A file of the folder: its definition, or what is wrong with it. ``notes`` say what of it is not taken."""

    path: Path
    definition: AgentDefinition | None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def definition_files(home: Path | None) -> list[DefinitionFile]:
    """Read the definitions of a home, in the order of their names; none where there is no folder."""
    folder = None if home is None else home / FOLDER
    if folder is None or not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".md" and not path.name.startswith("."))
    taken = dict.fromkeys(builtin_definitions().ids, "it is built in")
    found = []
    for path in paths[:MAX_FILES]:
        file = skipped(path) or definition_file(path)
        definition_id = "" if file.definition is None else file.definition.id
        if definition_id in taken:
            words = f"the id {definition_id!r} is taken ({taken[definition_id]})"
            file = DefinitionFile(path, None, (Problem(str(path), words, "give it another `name`"),))
        elif definition_id:
            taken[definition_id] = str(path)
        found.append(file)
    return found


def known_definitions(home: Path | None) -> AgentDefinitionRegistry:
    """Return the built-in definitions and those of a home that can be used."""
    registry = builtin_definitions()
    for file in definition_files(home):
        if file.definition is not None:
            registry.register(file.definition)
    return registry


class LiveDefinitions:
    """The definitions of a home as they are now: a service runs on while its user writes one.

    They are read again when a file of the folder is new, gone or changed; ``complete`` adds what no file has. The
    registry is the same object until then. Earlier plans keep the definitions that they were planned with.
    """

    def __init__(
        self, home: Path | None, complete: Callable[[AgentDefinitionRegistry], AgentDefinitionRegistry]
    ) -> None:
        self._home = home
        self._complete = complete
        self._seen = _signature(home)
        self._known = complete(known_definitions(home))

    def now(self) -> AgentDefinitionRegistry:
        seen = _signature(self._home)
        if seen != self._seen:
            self._known = self._complete(known_definitions(self._home))
            self._seen = seen
        return self._known


def _signature(home: Path | None) -> frozenset[tuple[str, int, int, int]]:
    """Return the files of the folder, each with what changes when it is written."""
    if home is None:
        return frozenset()
    try:
        with os.scandir(home / FOLDER) as entries:
            return frozenset(_written(entry) for entry in entries if entry.name.endswith(".md"))
    except OSError:  # no folder, or none that can be read
        return frozenset()


def _written(entry: "os.DirEntry[str]") -> tuple[str, int, int, int]:
    try:
        status = entry.stat()
    except OSError:  # a link that leads nowhere, or gone since
        return entry.name, 0, 0, 0
    return entry.name, status.st_ino, status.st_mtime_ns, status.st_size


def skipped(path: Path) -> DefinitionFile | None:
    """Return a file of a folder that is not an agent, such as a README: it has no front matter; else None."""
    try:
        if _text_of(path).lstrip("\ufeff").startswith("---"):
            return None
    except (OSError, UnicodeDecodeError, PathRefusedError):
        return None  # its reader reports what is wrong with it
    return DefinitionFile(path, None, notes=("it has no front matter and is not read as an agent",))


def definition_file(
    path: Path, read: Callable[[str, Path, list[str]], AgentDefinition] | None = None
) -> DefinitionFile:
    """Read one file; ``read`` parses its form, by default that of our own definitions."""
    notes: list[str] = []
    try:
        return DefinitionFile(path, (read or read_agent)(_text_of(path), path, notes), notes=tuple(notes))
    except InvalidPlanError as error:
        return DefinitionFile(path, None, tuple(error.problems))
    except (OSError, UnicodeDecodeError, PathRefusedError) as error:
        words = f"it is not UTF-8 text (byte {error.start})" if isinstance(error, UnicodeDecodeError) else str(error)
        return DefinitionFile(path, None, (Problem(str(path), words, "make it a readable text file"),))


def claude_file(path: Path) -> DefinitionFile:
    """Read a file of Claude Code, whatever fields it has."""
    return definition_file(path, claude_definition)


def _text_of(path: Path) -> str:
    with opened_file(path.resolve()) as descriptor:
        data = b""
        while len(data) <= MAX_BYTES and (more := os.read(descriptor, MAX_BYTES + 1 - len(data))):
            data += more
    if len(data) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES:,} bytes")
    return data.decode()


def read_agent(text: str, path: Path, notes: list[str]) -> AgentDefinition:
    """Read a file of our own form, or as other agents write theirs: by a field of theirs, or fields that are not YAML.

    A file with fields that only ours has is one of ours, and is checked strictly. Raises: InvalidPlanError.
    """
    parts = front_matter_of(text)
    if parts is not None and len(parts.fields) <= MAX_FRONT_CHARS:
        fields, is_yaml = _claude_fields(parts.fields, path)
        is_theirs = not is_yaml or not _THEIRS.isdisjoint(fields)
        if is_theirs and _OURS.isdisjoint(fields):
            return claude_definition(text, path, notes)
    return read_definition(text, path)


def claude_definition(text: str, path: Path, notes: list[str]) -> AgentDefinition:
    """Read a file as Claude Code writes it: name, description, tools and model; ``notes`` gets what is ignored.
    Raises: InvalidPlanError, it has no usable name and description, or no text.
    """
    parts = front_matter_of(text)
    if parts is None:
        return read_definition(text, path)  # which names the missing part
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
    if not parts.body:
        raise InvalidPlanError((Problem(str(path), "there is no text after the front matter", "write it there"),))
    return AgentDefinition(
        id=name,
        name=name,
        description=head["description"],
        instructions=parts.body,
        suggested_tools=wanted,
        source=str(path),
    )


def _claude_fields(text: str, path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the fields, and whether they are YAML. If not, each line that begins with a name is one."""
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


_READER: Final = DocumentReader.of(DefinitionDocument)


def read_definition(text: str, path: Path) -> AgentDefinition:
    """Read the text of a definition's file. Raises: InvalidPlanError, with every problem, each with its line."""
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    problems = Problems()
    parts = front_matter_of(text)
    if parts is None:
        problems.add(str(path), "it does not begin with front matter", "write fields between two lines of `---`")
        raise problems.error()
    if len(parts.fields) > MAX_FRONT_CHARS:
        words = f"its front matter has {len(parts.fields):,} characters"
        problems.add(str(path), words, f"write at most {MAX_FRONT_CHARS:,}")
        raise problems.error()
    # The line of `---` counts too: so the lines in problems are those of the file.
    document = read_document(f"\n{parts.fields}", str(path)) if parts.fields.strip() else Document(str(path), {})

    def report(place: tuple[str | int, ...], problem: str, hint: Hint) -> None:
        problems.add(document.place(place), problem, hint, line=document.line(place))

    if not parts.body:
        report((), "there is no text after the front matter", "write the agent's instructions there")
    if (found := fault(text)) != "":
        report((), f"the file has a character that is not text: {found}", "remove it")
    if not isinstance(document.value, dict):
        report((), f"the front matter is {kind_of(document.value)}", "write fields, such as `description: …`")
        raise problems.error()
    said = _READER.read(document.value, (), report, {"description": "-"})
    if said is not None and said.name is None and not re.fullmatch(ID, path.stem):
        report((), f"the file's name {path.stem!r} cannot be an id", f"add `name:` with {_ID_WORDS}")
    problems.refuse()
    assert said is not None
    return _definition_of(said, parts.body, path)


def _definition_of(said: DefinitionDocument, body: str, path: Path) -> AgentDefinition:
    name = said.name or path.stem
    options = {one.name: getattr(said, one.name) for one in fields(ModelOptions)}
    return AgentDefinition(
        id=name,
        name=name,
        description=" ".join(said.description.split()),
        instructions=body,
        model=said.model,
        suggested_tools=said.suggested_tools,
        mode=said.mode,
        limits={} if said.limits is None else said.limits.model_dump(exclude_none=True),
        options=ModelOptions(**options),
        fallback_models=said.fallback_models,
        source=str(path),
    )
