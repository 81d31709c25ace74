"""``soong agents``: the agent definitions that plans may name, and the files they come from (DIS-02)."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.terminal.console import Columns, complain, details, emit, listed, number_of, output, say
from soong.orchestrator.terminal.console import show as show_result
from soong.shared.core.config import load_config
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings

if TYPE_CHECKING:
    from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry
    from soong.shared.agents.definition_files import DefinitionFile

app = CommandTable()

_PROJECT = typer.Option(Path(), "--project", help="Folder whose own definitions count, too.")
_ID = typer.Argument(..., metavar="ID", help="The definition's id.")


@app.command("list")
def list_agents(project: Path = _PROJECT, *, is_json: bool = JSON) -> None:
    """List the definitions: the built-in ones, those of this home and those of a project."""
    from soong.orchestrator.schemas.tool import AgentSchema

    known = sorted(_known(project), key=lambda one: one.id)
    columns: Columns = {
        "agent": "id",
        "mode": "mode",
        "model": lambda one: one["model"] or "-",
        "source": lambda one: Path(one["source"]).name,
        "what it is for": "description",
    }
    listed([AgentSchema.of(one).model_dump(mode="json") for one in known], columns, is_json=is_json)
    if is_json:
        return
    files = _all_files(project)
    for file in files:
        _say_notes(file)
    if broken := [file for file in files if file.problems]:
        say(f"{number_of(len(broken), 'file')} cannot be used; soong agents validate shows why")


@app.command()
def show(definition_id: str = _ID, project: Path = _PROJECT, *, is_json: bool = JSON) -> None:
    """Show a definition: its model, tools, limits and instructions."""
    from soong.orchestrator.schemas.tool import AgentSchema
    from soong.shared.engine.tasks.problems import Unknown

    known = _known(project)
    if definition_id not in known.ids:
        hint = Unknown(definition_id, known.ids, names_all=True).text()
        raise UsageError(f"there is no agent definition {definition_id!r}; {hint}")
    definition = known.get(definition_id)
    document = AgentSchema.of(definition).model_dump(mode="json")
    show_result(document, lambda: _text(definition), is_json=is_json)
    for file in _all_files(project):
        if file.definition is not None and file.definition.id == definition_id:
            _say_notes(file)


@app.command()
def new(definition_id: str = _ID) -> None:
    """Write a definition to be filled in, and print its path."""
    from soong.orchestrator.cli.init import written_new
    from soong.orchestrator.operations.examples import START
    from soong.shared.agents.definition import ID, builtin_definitions
    from soong.shared.agents.definition_files import FOLDER

    if not re.fullmatch(ID, definition_id):
        raise UsageError(f"{definition_id!r} cannot be an id; write 1 to 64 lower-case letters, digits, `_` or `-`")
    if definition_id in builtin_definitions().ids:
        raise UsageError(f"{definition_id!r} is the id of a built-in definition; choose another")
    path = load_settings().home / FOLDER / f"{definition_id}.md"
    if path.exists():
        raise UsageError(f"{path} exists; edit it, or choose another id")
    written_new(path, START / "agent.md")
    output(str(path))
    say("edit it, then: soong agents validate")


@app.command("import")
def import_agents(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of agents' files, such as ~/.claude/agents."),
    project: Path | None = typer.Option(None, "--project", help="Copy them into this project, not into the home."),
) -> None:
    """Copy the agents of another program, and report what of them has no meaning here. Nothing is overwritten."""
    from soong.shared.agents.definition import builtin_definitions
    from soong.shared.agents.definition_files import FOLDER, definition_file, skipped
    from soong.shared.agents.project_definitions import PROJECT_FOLDER

    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder; name the one with the agents' files")
    check_person_now("import agents")
    target = load_settings().home / FOLDER if project is None else project / PROJECT_FOLDER
    target.mkdir(parents=True, exist_ok=True)
    copied, problems = 0, 0
    for path in sorted(folder.rglob("*.md")):
        file = skipped(path) or definition_file(path)
        name = "" if file.definition is None else file.definition.id
        for problem in file.problems:
            complain(str(problem))
        if name in builtin_definitions().ids or (name and (target / f"{name}.md").exists()):
            complain(f"{path}: there is an agent {name!r} already; give it another `name`")
            problems += 1
        elif name:
            (target / f"{name}.md").write_bytes(path.read_bytes())
            copied += 1
        problems += len(file.problems)
        _say_notes(file)
    output(f"{number_of(copied, 'file')} copied into {target}")
    if copied and project is None:
        say("they count as yours: no run is marked as tainted by their text, so read them as your own")
    if problems:
        raise typer.Exit(2)


@app.command()
def validate(
    files: list[Path] = typer.Argument(None, metavar="[FILE]...", help="Files [all of this home and of the project]."),
    project: Path = _PROJECT,
    *,
    is_json: bool = JSON,
) -> None:
    """Check the files of definitions and list every problem with its line."""
    from soong.orchestrator.schemas.tool import AgentFileSchema
    from soong.shared.agents.definition_files import claude_file, definition_file

    readers = {True: claude_file, False: definition_file}
    found = [readers[".claude" in path.resolve().parts](path) for path in files or ()] or _all_files(project)
    problems = [str(problem) for file in found for problem in file.problems]
    if is_json:
        emit([AgentFileSchema.of(file).model_dump(mode="json") for file in found])
    else:
        for problem in problems:
            complain(problem)
        for file in found:
            _say_notes(file)
    if problems:
        raise typer.Exit(2)
    if not is_json:
        empty = "there are no files; soong agents new ID writes one"
        output(f"{number_of(len(found), 'file')}, no problem" if found else empty)


def _known(project: Path) -> "AgentDefinitionRegistry":
    from soong.shared.agents.acp_agents import with_acp
    from soong.shared.agents.definition_files import known_definitions
    from soong.shared.agents.project_definitions import with_project

    home = load_settings().home
    config = load_config(home)
    return with_project(with_acp(known_definitions(home), config), project, config.agents)


def _all_files(project: Path) -> "list[DefinitionFile]":
    from soong.shared.agents.definition_files import definition_files
    from soong.shared.agents.project_definitions import project_definition_files

    home = load_settings().home
    return [*definition_files(home), *project_definition_files(project, load_config(home).agents)]


def _say_notes(file: "DefinitionFile") -> None:
    for note in file.notes:
        say(f"{file.path}: {note}")


def _text(definition: "AgentDefinition") -> str:
    tools, fallbacks = definition.suggested_tools, definition.fallback_models
    settings = [f"{name} {value}" for name, value in {**definition.limits, **definition.options.as_json()}.items()]
    rows = [
        ("what it is for", definition.description),
        ("source", definition.source),
        ("model", definition.model or "the model of the task"),
        ("fallback models", "those of the configuration" if fallbacks is None else ", ".join(fallbacks) or "none"),
        ("mode", definition.mode.value),
        ("suggested tools", "those of the run's role" if tools is None else ", ".join(tools) or "none"),
        ("settings", ", ".join(settings) or "those of the deployment"),
    ]
    return "\n".join([definition.id, "", details(rows), "", definition.instructions])
