"""``soong completion``: the script that lets a shell complete commands and options."""

from enum import StrEnum
from pathlib import PurePath

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its list of exports

from soong.orchestrator.cli.application import COMPLETE_VARIABLE
from soong.orchestrator.cli.console import emit_text
from soong.shared.core.errors import UsageError


class Shell(StrEnum):
    """The shells that are completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(
    shell: str = typer.Argument("", envvar="SHELL", help=f"{', '.join(Shell)}; by default the shell that SHELL names."),
) -> None:
    """Print the completion script of a shell: eval "$(soong completion bash)"."""
    name = PurePath(shell).name
    try:
        wanted = Shell(name)
    except ValueError:
        raise UsageError(f"the shell {name!r} is not known; name one of {', '.join(Shell)}") from None
    script = get_completion_script(prog_name="soong", complete_var=COMPLETE_VARIABLE, shell=wanted.value)
    emit_text(f"{script}\n")
