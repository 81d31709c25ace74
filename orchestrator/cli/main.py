"""``soong``: finds the command, imports its module and nothing else, turns errors into a sentence and an exit code.

Exit codes: 0 completed, 1 a step failed or the service cannot be used, 2 usage, 3 something was denied, 130
interrupted.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

import typer

from shared.errors import SoongError, UsageError
from shared.startup import collect_seldom

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF})


@dataclass(frozen=True, slots=True)
class Entry:
    """A command before its module is imported. ``module`` has a function ``command`` or a group ``app``."""

    module: str
    summary: str


COMMANDS = {
    "run": Entry("run", "Run a plan and follow it to its end."),
    "resume": Entry("resume", "Go on with a paused, interrupted or failed task."),
    "tasks": Entry("tasks", "List, show, validate, draw and cancel tasks."),
    "runs": Entry("runs", "List, show and follow the runs of agents."),
    "tools": Entry("tools", "List, show, explain and call tools, without a model."),
    "approvals": Entry("approvals", "List, show and answer the questions that wait for a person."),
    "permissions": Entry("permissions", "Show what decides on calls of tools, and what would become of one."),
    "audit": Entry("audit", "Export and check who answered and decided what."),
    "keys": Entry("keys", "List, rotate and end the keys that sign decisions."),
    "serve": Entry("serve", "Serve the HTTP API of a running service."),
    "tokens": Entry("tokens", "Make, list and revoke tokens of the HTTP API."),
    "up": Entry("up", "Start the whole service on this machine and stay."),
    "down": Entry("down", "Stop the service of this home."),
    "worker": Entry("worker", "Add a worker process to a service."),
    "workers": Entry("workers", "List the workers and what each holds."),
    "project": Entry("project", "Mark a folder, so that only workers that have it work in it."),
    "caps": Entry("caps", "Limit how much runs at once: by pool, model, agent definition or session."),
    "metrics": Entry("metrics", "Print what to watch, in Prometheus' text form."),
    "doctor": Entry("doctor", "Say what is wrong here and how to mend it."),
    "flower": Entry("flower", "Open Flower on the running service."),
    "orchestrator": Entry("orchestrator", "Run an orchestrator alone, for deployments."),
    "migrate": Entry("migrate", "Make or upgrade the database's tables."),
}


def main() -> None:
    """Run the command line; does not return."""
    collect_seldom()
    _open_closed_streams()
    _let_streams_say_everything()
    try:
        _check_folder()
        try:
            build(sys.argv[1:])(prog_name="soong")
        finally:
            sys.stdout.flush()  # here, where it can be said that it failed
    except SoongError as error:
        sys.stderr.write(f"soong: {error}\n")
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        with suppress(OSError):
            sys.stderr.write(f"soong: the output cannot be written: {error.strerror}\n")
        _leave_quietly()


def _open_closed_streams() -> None:
    """Stand in for output that was closed before we began (``>&-``): what nobody reads is no error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # as long as the process


def _let_streams_say_everything() -> None:
    """Spell out what a terminal's encoding has no character for: a result must not be lost in its last letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109  # pathlib is not imported for a bare --help
    except FileNotFoundError:
        raise UsageError("the folder that you are in is not there any more; change to one that is") from None


def _leave_quietly() -> NoReturn:
    """End although nobody reads our output any more: at the interpreter's end it would be written once again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with suppress(OSError):
            os.dup2(nothing, descriptor)
    sys.exit(EXIT_FAILED)


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the one command that ``arguments`` name; the others stand by their summary."""
    app = typer.Typer(
        name="soong",
        help="Durable task DAGs of agents on Celery workers, with one voice that grants permission.",
        no_args_is_help=True,
        add_completion=False,
        # Rich help costs more time than the rest of the start.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    for name, entry in COMMANDS.items():
        if name == chosen:
            _mount(app, name, entry)
        else:
            app.command(name, help=entry.summary)(_elsewhere)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # slow, and rarely asked

        typer.echo(f"soong {version('soong')}")
        raise typer.Exit


def _options(
    *,
    _version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
    ),
) -> None:
    """Take the options that stand before the command."""


def _mount(app: typer.Typer, name: str, entry: Entry) -> None:
    module = import_module(f"orchestrator.cli.{entry.module}")
    from shared.log import configure  # after the command's own imports, which a bare --help does not pay

    # A client tells what matters in sentences; what its parts log belongs neither into those nor on standard output.
    configure("error", process="cli")
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name, help=entry.summary, rich_help_panel=None)
    else:
        app.command(name, help=entry.summary)(module.command)


def _elsewhere() -> None:
    """Stand in for a command that was not called."""
