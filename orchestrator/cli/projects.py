"""``soong projects``: marks a folder, by which workers on other hosts prove that they have it."""

import os
from pathlib import Path

import typer

from soong.orchestrator.cli.console import output, say
from soong.orchestrator.client.submission import existing_folder
from soong.shared.sandbox.marked_project import mark_project

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def projects() -> None:
    """Project folders of a deployment with workers on several hosts."""


@app.command()
def mark(folder: Path = typer.Argument(Path(), help="The project's folder.")) -> None:
    """Mark a folder as a project and print its id.

    From then on steps that work in it are taken by those workers only that have the folder at the same path, with the
    same mark, and say so (SOONG_PROJECTS). A service on one machine needs no mark and asks for none.
    """
    place = existing_folder(folder)
    output(mark_project(place))
    say(f"workers that have it are started with SOONG_PROJECTS={os.fspath(place)}")
