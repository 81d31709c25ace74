"""Options that several commands take, and how much the command line prints in addition to its result."""

from enum import StrEnum
from typing import Any, Final

import typer

from soong.shared.core.worker_range import WorkerRange


class Verbosity(StrEnum):
    """QUIET prints results and errors only; VERBOSE logs more and shows tracebacks."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_chosen = [Verbosity.NORMAL]


def choose(verbosity: Verbosity) -> None:
    """Set the verbosity of this process."""
    _chosen[0] = verbosity


def chosen() -> Verbosity:
    """Return the verbosity of this process."""
    return _chosen[0]


def workers_option(text: str) -> Any:
    """Return ``--workers``, a number or a range; its help says what they are for."""
    return typer.Option(None, "--workers", metavar="N|MIN-MAX", parser=_range, help=text)


def _range(text: str) -> WorkerRange:
    try:
        return WorkerRange.of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


JSON: Final[Any] = typer.Option(False, "--json", help="Print one JSON document.")
RESULT_AS_JSON: Final[Any] = typer.Option(
    False, "--json", help="Print one JSON document; progress goes to standard error."
)
ALLOW: Final[Any] = typer.Option(
    [], "--allow", metavar="TOOL:SCOPE", help="Allow a tool for one folder, file or host; may be repeated."
)
BUDGET: Final[Any] = typer.Option(
    [], "--budget", metavar="LIMIT", help="What it may use in all: 2usd, 200ktok, or both [the configuration's]."
)
DETACH: Final[Any] = typer.Option(False, "--detach", help="Leave it running and print its id.")
INPUT: Final[Any] = typer.Option([], "--input", metavar="NAME=VALUE", help="An input of the plan; may be repeated.")
MODEL: Final[Any] = typer.Option(None, "--model", help="Model of agents that name none [SOONG_MODEL].")
SETTING: Final[Any] = typer.Option(
    [],
    "--setting",
    metavar="NAME=VALUE",
    help="How the model is asked: temperature, max_tokens, thinking, timeout_s, parallel_calls, cache; "
    "may be repeated.",
)
WORKERS: Final[Any] = workers_option("Workers of a service started for this.")
SLOTS: Final[Any] = typer.Option(None, "--slots", min=1, help="Slots of each of those workers.")
