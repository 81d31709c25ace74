"""``soong init``: a plan of your own to start from; ``soong demo``: an installed example. Both run at once (OPS-14)."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from soong.orchestrator.cli.options import ALLOW, INPUT, JSON, RESULT_AS_JSON, SETTING
from soong.orchestrator.cli.run import RunArguments, run_plan
from soong.orchestrator.client.program import program, program_elsewhere
from soong.orchestrator.operations.examples import START, audited_package, example_named, examples
from soong.orchestrator.terminal.console import emit, listed, output, say, show, why_nobody_is_asked
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings

DEFAULT: Final = "audit"
_FILES: Final = {"plan.yaml": "plan.yaml", "steps.py": "steps.py", ".soong/agents/reader.md": "reader.md"}


def command(
    folder: Path = typer.Argument(Path(), metavar="[DIR]", help="Folder of the project."), *, is_json: bool = JSON
) -> None:
    """Write a plan, its functions and an agent with comments, and a configuration if you have none.

    No file is replaced: if one of the project's files exists, nothing is written.
    """
    written = _copied({name: START / file for name, file in _FILES.items()}, folder, "name another: soong init DIR")
    config = load_settings().home / "config.toml"
    if not os.path.lexists(config):
        config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.append(written_new(config, START / "config.toml", mode=0o600))
    if is_json:
        emit({"files": [str(path) for path in written]})
        return
    output("\n".join(str(path) for path in written))
    # Relative paths start where the command is typed, so it is typed there.
    is_here = folder.resolve() == Path.cwd()
    there = "" if is_here else f"cd {shlex.quote(str(folder))} && "
    say(f"edit them, then: {there}{program() if is_here else program_elsewhere()} run plan.yaml")


def _copied(files: Mapping[str, Path], folder: Path, hint: str) -> list[Path]:
    """Write files by their names in a folder; none of the folder's own is replaced. Raises: UsageError."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; {hint}")
    # A link counts too, wherever it leads.
    if taken := [name for name in files if os.path.lexists(folder / name)]:
        raise UsageError(f"{folder.absolute()} has {', '.join(taken)} already; {hint}")
    return [written_new(folder / name, file) for name, file in files.items()]


def written_new(path: Path, source: Path, *, mode: int = 0o644) -> Path:
    """Write a copy where nothing is yet; return the path. Raises: UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(source.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def demo(
    name: str = typer.Argument(DEFAULT, metavar="[NAME]", help="The example (--list shows them)."),
    *,
    is_listed: bool = typer.Option(False, "--list", help="List the examples."),
    copy_to: Path | None = typer.Option(
        None, "--copy", metavar="DIR", help="Copy the example into a folder, to be edited, and run nothing."
    ),
    project: Path | None = typer.Option(
        None, "--project", help="Folder that the agents work in [.; for the audit: the installed Celery]."
    ),
    given: list[str] = INPUT,
    model: str | None = typer.Option(None, "--model", help="Let a model do the work, not the scripted agents."),
    setting: list[str] = SETTING,
    allow: list[str] = ALLOW,
    budget: list[str] = typer.Option(
        [], "--budget", metavar="LIMIT", help="What a model may use in all: 2usd, 200ktok."
    ),
    is_json: bool = RESULT_AS_JSON,
) -> None:
    """Run an example that is installed with Soong: no key, no model and no checkout is needed."""
    if is_listed:
        found = [{"name": one.name, "summary": one.summary, "plan": str(one.plan)} for one in examples()]
        listed(found, {"example": "name", "what it shows": "summary"}, is_json=is_json)
        return
    example = example_named(name)
    if copy_to is not None:
        written = _copied({file.name: file for file in example.files}, copy_to, "choose another folder with --copy DIR")
        plan = str(copy_to / example.plan.name)
        show({"plan": plan, "files": [str(path) for path in written]}, lambda: plan, is_json=is_json)
        if not is_json:
            say(f"edit it, then: {program()} {shlex.join(['run', plan])}")
        return
    if name == DEFAULT:
        project, given, allow = _for_the_audit(project, given, allow)
    raise typer.Exit(
        run_plan(RunArguments(example.plan, project or Path(), given, model, setting, allow, budget, is_json))
    )


def _for_the_audit(
    project: Path | None, given: list[str], allow: list[str]
) -> tuple[Path | None, list[str], list[str]]:
    """Write the report where the command is typed. If nobody can be asked, one rule allows exactly that folder."""
    here = Path.cwd()
    if not any(word.startswith("report_dir=") for word in given):
        given = [*given, f"report_dir={here}"]
        if why_nobody_is_asked() and not allow:
            allow = [f"code.write_file:{here}"]
    return project or audited_package(), given, allow
