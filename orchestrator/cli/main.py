"""``soong``: finds the command, imports its module and nothing else, turns errors into a sentence and an exit code.

Exit codes: 0 completed, 1 a step failed or the service cannot be used, 2 usage, 3 something was denied, 130
interrupted.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from typer import Abort, TyperException

from soong.orchestrator.cli.application import COMPLETE_VARIABLE, build, words_to_complete
from soong.orchestrator.terminal.console import Verbosity, chosen, complain, emit_error
from soong.shared.core.errors import InvalidPlanError, SoongError, UsageError
from soong.shared.core.jsontext import require_text
from soong.shared.core.startup import begin, guard_streams, leave_gc

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF})


def main() -> None:
    """Run the command line; does not return."""
    begin()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the start (``>&-``): unread output is not an error
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # as long as the process
    guard_streams()
    try:
        sys.exit(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        with suppress(OSError):
            complain(f"the output cannot be written: {error.strerror}")
        _leave_quietly()
    finally:
        leave_gc()


def _run(arguments: list[str]) -> int:
    """Run one command and return the exit code; whatever a user can correct is a sentence, and JSON where asked for."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        _check(arguments)
        program = build(words_to_complete() or arguments)
        try:
            code = program.main(arguments, prog_name="soong", complete_var=COMPLETE_VARIABLE, standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where it can be said that it failed
    except SoongError as error:
        if chosen() is Verbosity.VERBOSE:
            traceback.print_exc()
        return _failed(error, arguments)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("soong."):
            raise
        complain(f"{error.name} is left out of this installation; install the complete package")
        return EXIT_FAILED
    except TyperException as error:
        return _refused(error, arguments)
    except Abort:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _failed(error: SoongError, arguments: Sequence[str]) -> int:
    code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    problems = error.problems if isinstance(error, InvalidPlanError) else ()
    for line in error.lines if isinstance(error, InvalidPlanError) else (error,):
        complain(str(line))
    if "--json" in arguments:
        emit_error(str(error), kind=type(error).__name__, exit_code=code, problems=problems)
    return code


def _refused(error: TyperException, arguments: Sequence[str]) -> int:
    """Show what Typer says of a wrong command line."""
    show = getattr(error, "show", None)
    if show is None:
        complain(error.format_message())
    else:
        show()
    if "--json" in arguments:
        emit_error(error.format_message(), kind="UsageError", exit_code=EXIT_USAGE)
    return error.exit_code


def _check(arguments: Sequence[str]) -> None:
    """Refuse, before any command, a folder that is gone, arguments that cannot be stored, and a misspelled setting;
    help needs no settings, and a shell that completes shows no error. Raises: SoongError.
    """
    try:
        os.getcwd()  # noqa: PTH109  # pathlib is not imported for a bare --help
    except FileNotFoundError:
        raise UsageError("the folder that you are in is not there any more; change to one that is") from None
    require_text("the argument", *arguments)
    is_help = not arguments or not {"--help", "-h"}.isdisjoint(arguments) or words_to_complete()
    if not is_help and any(name.startswith("SOONG_") for name in os.environ):
        from soong.shared.core.settings import require_known_variables

        require_known_variables()


def _leave_quietly() -> NoReturn:
    """End although nobody reads our output any more: at the interpreter's end it would be written once again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with suppress(OSError):
            os.dup2(nothing, descriptor)
    sys.exit(EXIT_FAILED)
