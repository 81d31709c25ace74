"""What a command call asks for, made definite: program, folder, time, environment; what is shown and granted (CMD-01).

Everything is found once, before permission. What is executed is what was shown, or nothing.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.config import CommandsConfig
from shared.jsontext import JsonObject
from shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory
from shared.sandbox.paths import Located, PathPolicy, is_below, write_roots
from shared.sandbox.programs import child_environment, find_program, program_identity, untrusted_folders
from shared.tools.definition import Target, ToolContext
from shared.tools.result import ErrorType, ToolError
from shared.toolsets.code.places import number_of, object_identity, text_of
from shared.toolsets.code.program_kinds import needs_exact_grant
from shared.toolsets.code.shell_strings import shell_string

MAX_ARGUMENTS: Final = 4096
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Linux takes no longer one."""
MAX_ARGV_BYTES: Final = 1024 * 1024
MAX_SCOPE_CHARS: Final = 2_000

_ANY_ARGUMENTS: Final = "…"
_ESCAPES: Final = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One command, resolved. ``argv[0]`` is the absolute path of the program; ``target_path`` what that leads to."""

    argv: tuple[str, ...]
    given_name: str
    target_path: Path
    cwd: Path
    timeout_ms: int
    environment: Mapping[str, str]
    is_from_roots: bool

    @property
    def program(self) -> Path:
        return Path(self.argv[0])

    @property
    def known_as(self) -> tuple[str, ...]:
        """All names of the program: as written, as found, as what it leads to."""
        return (self.given_name, self.argv[0], str(self.target_path))

    @property
    def shown(self) -> str:
        """The whole command for people, on one line, in words that a shell would read back as the same argv."""
        return f"{quoted(self.argv)} in {quoted([str(self.cwd)])}, at most {self.timeout_ms / 1000:g} s"

    @property
    def scope(self) -> str:
        """What a session grant covers: program and folder, for some programs the very argv; empty when too long."""
        is_exact = self.is_from_roots or needs_exact_grant(self.known_as, self.target_path)
        words = quoted(self.argv) if is_exact else f"{quoted(self.argv[:1])} {_ANY_ARGUMENTS}"
        scope = f"{words} in {quoted([str(self.cwd)])}"
        return scope if len(scope) <= MAX_SCOPE_CHARS else ""

    def precondition(self, folder_identity: str) -> str:
        """Return what program and folder are now; ``folder_identity`` is of the folder looked at or opened."""
        return f"{program_identity(self.program)} in {folder_identity}"

    def target(self) -> Target:
        return Target(
            kind="command",
            scope=self.scope,
            shown=self.shown,
            precondition=self.precondition(object_identity(self.cwd)),
            preview=self._preview(),
        )

    def _preview(self) -> str:
        lines = [f"environment: {', '.join(sorted(self.environment))}"]
        if self.target_path != self.program:
            lines.insert(0, f"{self.argv[0]} leads to {quoted([str(self.target_path)])}")
        if self.is_from_roots:
            lines.insert(0, "the program lies where this run can write")
        return "\n".join(lines)


def resolve(
    policy: PathPolicy, config: CommandsConfig, limit_ms: int, context: ToolContext, call_input: JsonObject
) -> CommandCall:
    """Make a call definite.

    Raises:
        ToolError: ``invalid_input`` for an argv that no program can be given, ``shell_not_allowed`` for a shell with a
            command string, ``path_outside_roots`` for a folder elsewhere.
        PathRefusedError: the folder or the program cannot be used; names it.
    """
    argv = _argv(call_input)
    cwd = _cwd(policy, context, call_input)
    untrusted = untrusted_folders(context.workplace)
    environment = child_environment(config.env, config.secret_env, untrusted=untrusted)
    program = find_program(argv[0], environment, cwd=cwd, untrusted=untrusted)
    leads_to = program.resolve()
    found = CommandCall(
        argv=(str(program), *argv[1:]),
        given_name=argv[0],
        target_path=leads_to,
        cwd=cwd,
        timeout_ms=min(number_of(call_input, "timeout_ms", limit_ms), limit_ms),
        environment=environment,
        is_from_roots=any(is_below(path, root) for root in untrusted for path in (program, leads_to)),
    )
    if shell := shell_string(found.known_as, argv[1:]):
        hint = "give the program and its arguments as argv, one call a program; nothing is expanded, piped or chained"
        raise ToolError(ErrorType.SHELL_NOT_ALLOWED, f"{shell!r} would be given a command string", hint=hint)
    return found


def quoted(words: Sequence[str]) -> str:
    """Return words as one line: as a shell would read them, with everything invisible written out."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else f"\\U{ord(char):08x}") for char in word)


def _argv(call_input: JsonObject) -> tuple[str, ...]:
    given = call_input.get("argv")
    words = tuple(word for word in given if isinstance(word, str)) if isinstance(given, list | tuple) else ()
    if not words or not words[0]:
        raise _invalid("argv is empty", "name the program first, then its arguments, each as a string of its own")
    sizes = [_size(word, place) for place, word in enumerate(words)]
    if max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > MAX_ARGV_BYTES:
        problem = f"argv has {sum(sizes)} bytes, its longest argument {max(sizes)}"
        limits = f"at most {MAX_ARGV_BYTES} and {MAX_ARGUMENT_BYTES} are taken"
        raise _invalid(f"{problem}; {limits}", "write large input to a file and name the file")
    return words


def _size(word: str, place: int) -> int:
    if "\0" in word:
        raise _invalid(f"argv[{place}] holds a NUL character", "no program can be given one")
    try:
        return len(word.encode("utf-8")) + 1
    except UnicodeEncodeError as error:
        raise _invalid(f"argv[{place}] is not valid Unicode", "it holds a lone surrogate") from error


def _invalid(problem: str, hint: str) -> ToolError:
    return ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)


def _cwd(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Path:
    roots = (context.workplace.project, *write_roots(context.workplace))
    located: Located = policy.locate(context.workplace, text_of(call_input, "cwd", str(context.workplace.project)))
    if not any(is_below(located.resolved, root) for root in roots):
        hint = f"run it in the project ({context.workplace.project}) or below"
        raise PathRefusedError(PathRefusal.OUTSIDE, str(located.resolved), "lies outside the project and roots", hint)
    with opened_directory(located.resolved):
        return located.resolved
