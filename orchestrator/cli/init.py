"""``soong init``: a plan of your own to start from, which runs at once (OPS-14)."""

import os
import shlex
from pathlib import Path

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.cli.init_files import AGENT, CONFIG, PLAN, STEPS
from soong.orchestrator.client.program import program, program_elsewhere
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings

_FILES = {"plan.yaml": PLAN, "steps.py": STEPS, ".soong/agents/reader.md": AGENT}


def command(
    folder: Path = typer.Argument(Path(), metavar="[DIR]", help="Folder of the project."),
    *,
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Write a plan, its functions and an agent with comments, and a configuration if you have none.

    No file is replaced: if one of the project's files exists, nothing is written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name another")
    # A link counts too, wherever it leads.
    if taken := [name for name in _FILES if os.path.lexists(folder / name)]:
        raise UsageError(f"{folder.absolute()} has {', '.join(taken)} already; name another folder: soong init DIR")
    written = [_written(folder / name, text) for name, text in _FILES.items()]
    config = load_settings().home / "config.toml"
    if not os.path.lexists(config):
        config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.append(_written(config, CONFIG, mode=0o600))
    if is_json:
        emit({"files": [str(path) for path in written]})
        return
    output("\n".join(str(path) for path in written))
    # Relative paths start where the command is typed, so it is typed there.
    is_here = folder.resolve() == Path.cwd()
    there = "" if is_here else f"cd {shlex.quote(str(folder))} && "
    say(f"edit them, then: {there}{program() if is_here else program_elsewhere()} run plan.yaml")


def _written(path: Path, text: str, *, mode: int = 0o644) -> Path:
    """Write a new file. Raises: UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path
