"""``soong demo``: runs an example that is installed with the program, or copies it to be edited."""

import shlex
import shutil
from pathlib import Path

import typer

from soong.orchestrator.cli import run
from soong.orchestrator.cli.asking import why_nobody_is_asked
from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.client.program import program
from soong.orchestrator.examples import Example, audited_package, example_named, examples
from soong.shared.core.errors import UsageError

DEFAULT = "audit"


def command(
    name: str = typer.Argument(DEFAULT, metavar="[NAME]", help="The example (--list shows them)."),
    *,
    is_listed: bool = typer.Option(False, "--list", help="List the examples."),
    copy_to: Path | None = typer.Option(
        None, "--copy", metavar="DIR", help="Copy the example into a folder, to be edited, and run nothing."
    ),
    project: Path | None = typer.Option(
        None, "--project", help="Folder that the agents work in [.; for the audit: the installed Celery]."
    ),
    given: list[str] = typer.Option([], "--input", metavar="NAME=VALUE", help="An input of the plan; may be repeated."),
    model: str | None = typer.Option(None, "--model", help="Let a model do the work, not the scripted agents."),
    setting: list[str] = typer.Option([], "--setting", metavar="NAME=VALUE", help=run.SETTING_HELP),
    allow: list[str] = typer.Option(
        [], "--allow", metavar="TOOL:SCOPE", help="Allow a tool for one folder, file or host; may be repeated."
    ),
    budget: list[str] = typer.Option(
        [], "--budget", metavar="LIMIT", help="What a model may use in all: 2usd, 200ktok."
    ),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document; progress goes to standard error."),
) -> None:
    """Run an example that is installed with Soong: no key, no model and no checkout is needed."""
    if is_listed:
        _list(is_json=is_json)
        return
    example = example_named(name)
    if copy_to is not None:
        _copy(example, copy_to, is_json=is_json)
        return
    if name == DEFAULT:
        project, given, allow = _for_the_audit(project, given, allow)
    run.command(
        example.plan,
        project=project or Path(),
        given=given,
        model=model,
        setting=setting,
        allow=allow,
        budget=budget,
        is_previewed=False,
        allowed_steps=[],
        approvals=None,
        detach=False,
        is_json=is_json,
        workers=None,
        slots=None,
        max_concurrent=None,
    )


def _list(*, is_json: bool) -> None:
    found = examples()
    if is_json:
        emit([{"name": one.name, "summary": one.summary, "plan": str(one.plan)} for one in found])
        return
    output(table(("example", "what it shows"), [(one.name, one.summary) for one in found]))


def _copy(example: Example, folder: Path, *, is_json: bool) -> None:
    """Copy the files of an example; none of the folder's own is replaced. Raises: UsageError."""
    files = example.files
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; choose another with --copy DIR")
    if taken := [file.name for file in files if (folder / file.name).exists()]:
        raise UsageError(f"{folder} has {', '.join(taken)} already; choose another folder with --copy DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)
    plan = folder / example.plan.name
    if is_json:
        emit({"plan": str(plan), "files": [str(folder / file.name) for file in files]})
    else:
        output(str(plan))
        say(f"edit it, then: {program()} {shlex.join(['run', str(plan)])}")


def _for_the_audit(
    project: Path | None, given: list[str], allow: list[str]
) -> tuple[Path | None, list[str], list[str]]:
    """Write the report where the command is typed. Where nobody can be asked, one rule allows exactly that folder."""
    here = Path.cwd()
    if not any(word.startswith("report_dir=") for word in given):
        given = [*given, f"report_dir={here}"]
        if why_nobody_is_asked() and not allow:
            allow = [f"code.write_file:{here}"]
    return project or audited_package(), given, allow
