"""The option of commands that start a service: how many workers it has."""

from typing import Any

import typer

from soong.shared.core.worker_range import WorkerRange


def workers_option(text: str) -> Any:
    """Return ``--workers``, a number or a range; its help says what they are for."""
    return typer.Option(None, "--workers", metavar="N|MIN-MAX", parser=_range, help=text)


def _range(text: str) -> WorkerRange:
    try:
        return WorkerRange.of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error
