"""The resolved form of a command call: program, folder, files, time, environment; its shown text and its grant.

Everything is found once, before permission. Only the shown command is executed, or nothing (CMD-01). A session grant
covers the exact argv and the content of the files that it names (PER-08); :mod:`soong.shared.toolsets.code.named_files`
has the few programs of which it covers more.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.config import CommandsConfig
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory
from soong.shared.sandbox.paths import Located, PathPolicy, is_below, stands_linked, write_roots
from soong.shared.sandbox.programs import child_environment, find_program, program_identity, untrusted_folders
from soong.shared.tools.definition import RunDirs, Target, ToolContext, access_of
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import number_of, text_of
from soong.shared.toolsets.code.named_files import NamedFiles, is_harmless, named_files, quoted
from soong.shared.toolsets.code.paths import object_identity
from soong.shared.toolsets.code.shell_strings import shell_string

MAX_ARGUMENTS: Final = 4096
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Linux takes no longer one."""
MAX_ARGV_BYTES: Final = 1024 * 1024
MAX_SCOPE_CHARS: Final = 2_000

ANY_ARGUMENTS: Final = "… (any short options and names within the project)"
"""Text that no quoted argv contains: the first character is always quoted there."""


class CommandCall(Value):
    """One command, resolved. ``argv[0]`` is the absolute path of the program; ``target_path`` what that leads to."""

    argv: tuple[str, ...]
    given_name: str
    target_path: Path
    cwd: Path
    timeout_ms: int
    environment: Mapping[str, str]
    is_from_roots: bool
    is_wide: bool = False
    """A session grant covers more than this argv: a harmless program that is given nothing beyond the project."""
    files: NamedFiles = msgspec.field(default_factory=NamedFiles)
    access: CommandAccess = msgspec.field(default_factory=CommandAccess)
    confinement: str = ""
    """The sandbox that it runs in, as a question shows it; empty: none."""

    @property
    def program(self) -> Path:
        return Path(self.argv[0])

    @property
    def known_as(self) -> tuple[str, ...]:
        """All names of the program: as written, as found, as what it leads to."""
        return (self.given_name, self.argv[0], str(self.target_path))

    @property
    def shown(self) -> str:
        """The full command for people, on one line, in words that a shell would read back as the same argv."""
        return f"{quoted(self.argv)} in {quoted([str(self.cwd)])}, at most {self.timeout_ms / 1000:g} s"

    @property
    def scope(self) -> str:
        """The scope of a session grant: the argv, its folder and its files' content; empty when too long to be read."""
        words = f"{quoted(self.argv[:1])} {ANY_ARGUMENTS}" if self.is_wide else quoted(self.argv)
        files = f", files sha256:{self.files.content}" if self.files.content else ""
        scope = f"{words} in {quoted([str(self.cwd)])}{files}"
        return scope if len(scope) <= MAX_SCOPE_CHARS else ""

    def precondition(self, folder_identity: str) -> str:
        """Return the state of program, folder and files; ``folder_identity`` is of the folder looked at or opened."""
        files = f" with {self.files.state}" if self.files.state else ""
        return f"{program_identity(self.program)} in {folder_identity}{files}"

    def target(self) -> Target:
        lines = ["the program lies where this run can write"] if self.is_from_roots else []
        if self.target_path != self.program:
            lines.append(f"{self.argv[0]} leads to {quoted([str(self.target_path)])}")
        lines.append(f"environment: {', '.join(sorted(self.environment))}")
        if self.confinement:
            lines.append(f"sandbox: {self.confinement}")
        return Target(
            kind="command",
            scope=self.scope,
            shown=self.shown,
            precondition=self.precondition(object_identity(self.cwd)),
            preview="\n".join([*self.files.lines(), *lines]),
        )


def resolve(
    policy: PathPolicy, config: CommandsConfig, limit_ms: int, context: ToolContext, call_input: JsonObject
) -> CommandCall:
    """Make a call definite.
    Raises: ToolError, ``invalid_input`` for an argv that no program can be given, ``shell_not_allowed`` for a shell
    with a command string, ``path_outside_roots`` for a folder elsewhere; PathRefusedError, the folder or the program
    cannot be used; names it.
    """
    argv = _argv(call_input)
    cwd = _cwd(policy, context, call_input)
    untrusted = untrusted_folders(context.run_dirs)
    environment = child_environment(config.env, config.secret_env, untrusted=untrusted)
    program = find_program(argv[0], environment, cwd=cwd, untrusted=untrusted)
    leads_to = program.resolve()
    is_from_roots = any(is_below(path, root) for root in untrusted for path in (program, leads_to))
    is_plain = is_harmless(program) and not is_from_roots
    # A name means the program that it finds, never a file of that name elsewhere.
    open_to = config.sandbox_network
    has_network = "*" in open_to or str(program) in open_to or ("/" not in argv[0] and argv[0] in open_to)
    found = CommandCall(
        argv=(str(program), *argv[1:]),
        given_name=argv[0],
        target_path=leads_to,
        cwd=cwd,
        timeout_ms=min(number_of(call_input, "timeout_ms", limit_ms), limit_ms),
        environment=environment,
        is_from_roots=is_from_roots,
        is_wide=is_plain and _stays_within(policy, context.run_dirs, cwd, argv[1:]),
        access=access_of(context.run_dirs, can_write=True, has_network=has_network),
    )
    if not is_plain and (shell := shell_string(found.known_as, argv[1:])):
        hint = "give the program and its arguments as argv, one call a program; nothing is expanded, piped or chained"
        raise ToolError(ErrorType.SHELL_NOT_ALLOWED, f"{shell!r} would be given a command string", hint=hint)
    if found.is_wide:
        return found
    return replace(found, files=named_files(found.argv, cwd, untrusted, policy.is_sensitive))


def _stays_within(policy: PathPolicy, place: RunDirs, cwd: Path, words: Sequence[str]) -> bool:
    """Say whether words are short options and names of what lies in the project and may be read without asking."""
    end = words.index("--") if "--" in words else len(words)
    if any(word.startswith("--") for word in words[:end]):
        return False  # long options may take a file, and their names may be cut short
    named = [*(word for word in words[:end] if not word.startswith("-")), *words[end + 1 :]]
    try:
        found = [policy.locate(place, str(cwd / word)) for word in named]
    except PathRefusedError:
        return False
    is_open = (one.is_inside_project and not one.is_sensitive and not stands_linked(one.resolved) for one in found)
    return all(is_open)


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
    roots = (context.run_dirs.project, *write_roots(context.run_dirs))
    located: Located = policy.locate(context.run_dirs, text_of(call_input, "cwd", str(context.run_dirs.project)))
    if not any(is_below(located.resolved, root) for root in roots):
        hint = f"run it in the project ({context.run_dirs.project}) or below"
        raise PathRefusedError(PathRefusal.OUTSIDE, str(located.resolved), "lies outside the project and roots", hint)
    with opened_directory(located.resolved):
        return located.resolved
