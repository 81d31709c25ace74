"""Which program a call starts, where and with which words: computed for permission and again for the call itself.

Both times from the definition and the validated input alone, so that what was shown is what runs or nothing does.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.value import Value
from soong.shared.sandbox.paths import valid_text
from soong.shared.sandbox.programs import child_environment, find_program, program_identity, untrusted_folders
from soong.shared.tools.definition import RunDirs, Target, ToolContext
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.named_files import NamedFiles, is_open_ended, runs_what_is_in
from soong.shared.toolsets.code.shell_strings import shell_string
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool, is_inside
from soong.shared.toolsets.declarative.template import TemplateArgument, render_arguments, render_shell

SHELL: Final = "/bin/sh"
EFFECT_VARIABLE: Final = "SOONG_EFFECT_ID"
"""What names the call's effect to its program; nothing else of that name is passed on (DAG-09)."""


class Invocation(Value):
    """One call as the operating system will see it. ``line`` is how a person reads it."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]
    line: str
    is_own_to_run: bool
    """The program, or a script that it is given or reads unnamed, lies where the run itself may write."""

    @property
    def program(self) -> Path:
        return Path(self.argv[0])


def invocation(
    tool: DeclaredTool, bounds: Bounds, config: Config, place: RunDirs, call_input: JsonObject
) -> Invocation:
    """Return what a validated call starts.

    Raises:
        ToolError: ``invalid_input``, a value cannot be an argument; ``path_outside_roots``, the working_dir leads away.
        PathRefusedError: there is no such program.
    """
    commands = config.commands
    own = untrusted_folders(place)
    environment = child_environment(commands.env, commands.secret_env, declared=tool.env_allowlist, untrusted=own)
    cwd = _cwd(tool, bounds, place)
    program = find_program(SHELL if tool.is_shell else tool.command, environment, cwd=cwd, untrusted=own)
    if tool.is_shell:
        shell = render_shell((TemplateArgument((tool.command,), ()), *tool.arguments), call_input)
        # The name stands where the shell expects its own; it is what its error messages begin with.
        argv = (str(program), "-c", shell.text, tool.name, *shell.values)
        line = shell.shown
    else:
        argv = (str(program), *render_arguments(tool.arguments, call_input))
        line = shlex.join(argv)
        _refuse_shell_string(tool, argv)
    return Invocation(argv, cwd, environment, line, runs_what_is_in(argv, cwd, own))


def target_of(tool: DeclaredTool, made: Invocation, call_input: JsonObject, files: NamedFiles) -> Target:
    """Return what permission is asked for and remembered by (PER-04, PER-08). ``files`` are those of the invocation.

    A grant for a plain program holds for the program in its folder: what it can be made to do was fixed by the user who
    wrote the definition. Where an argument can be a program, and for dangerous tools, it holds for the very same input
    and for what the files that it names hold.
    """
    is_exact = tool.is_shell or "dangerous" in tool.tags or _has_free_argument(tool, made.program)
    content = f", files sha256:{files.content}" if files.content else ""
    words = f"{made.line} < {digest(call_input)}{content}" if is_exact else str(made.program)
    state = f" with {files.state}" if files.state else ""
    return Target(
        kind="command",
        scope=valid_text(f"{made.cwd}: {words}"),
        shown=valid_text(made.line),
        precondition=f"{program_identity(made.program)}{state}",
        preview=_preview(tool, made, files),
    )


def hold_to_permission(context: ToolContext, now: Target) -> None:
    """Refuse to start anything else than what was shown.

    Raises:
        ToolError: ``path_conflict``, the program has been replaced or another is found.
    """
    then = context.target
    if then.kind == "command" and (then.shown, then.scope, context.precondition) != (
        now.shown,
        now.scope,
        now.precondition,
    ):
        raise ToolError(ErrorType.PATH_CONFLICT, "the program is not the one that was permitted any more; call again")


def _refuse_shell_string(tool: DeclaredTool, argv: Sequence[str]) -> None:
    shell = shell_string(_known_as(tool, Path(argv[0])), argv[1:])
    if shell:
        problem = f"this input would hand {shell} a command string"
        raise ToolError(ErrorType.SHELL_NOT_ALLOWED, problem, hint="a user can declare a tool of command_type shell")


def _has_free_argument(tool: DeclaredTool, program: Path) -> bool:
    """Say whether a value can be a program, a script or a command of the program.

    It can where it begins its argument, and where the program is known for that. In ``--to={{place}}`` it is a value
    whatever it holds, as the user who wrote it down wanted.
    """
    is_free = any(argument.fields and not argument.literals[0] for argument in tool.arguments)
    return is_free or is_open_ended(_known_as(tool, program))


def _known_as(tool: DeclaredTool, program: Path) -> tuple[str, ...]:
    return (tool.command, str(program), os.path.realpath(program))


def _cwd(tool: DeclaredTool, bounds: Bounds, place: RunDirs) -> Path:
    if tool.working_dir is None:
        return place.cwd
    if not is_inside(tool.working_dir, bounds.roots):
        problem = f"the working_dir {str(tool.working_dir)!r} of {tool.name!r} leads outside the allowed roots now"
        raise ToolError(ErrorType.PATH_OUTSIDE_ROOTS, problem, hint="its definition must be fixed by the user")
    return Path(os.path.realpath(tool.working_dir))


def _preview(tool: DeclaredTool, made: Invocation, files: NamedFiles) -> str:
    kind = "shell line" if tool.is_shell else "program"
    names = ", ".join(sorted({*made.environment, EFFECT_VARIABLE}))
    place = f"{kind} declared in {tool.origin}\nruns in {made.cwd}"
    return "\n".join([*files.lines(), f"{place}\ngets {names}, and the arguments as JSON on stdin"])
