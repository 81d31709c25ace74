"""The content of a definition file, and all its possible problems (CMD-02, CMD-04, CMD-06).

All problems of a file are found before any is reported. A definition names a program that will run with the user's
rights, so trust in a file depends on its possible writers: it and its folder, ``${SOONG_AGENT_HOME}/tools``, belong to
the user or to root and are writable by nobody else. A project's folders are never looked at.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidJsonError, InvalidToolError, Problem, UsageError
from soong.shared.core.jsontext import Json, JsonObject, canonical, dotted, parse_strict
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import opened_directory, opened_file, read_up_to
from soong.shared.sandbox.paths import is_below
from soong.shared.tools.definition import NAMESPACE_TAGS, Permission
from soong.shared.tools.naming import check_name
from soong.shared.tools.registry import MAX_TIMEOUT
from soong.shared.tools.schema import schema_problems
from soong.shared.toolsets.code.shell_strings import shell_string
from soong.shared.toolsets.declarative.template import OPENING, TemplateArgument, field_problems, shell_problems

MAX_STDOUT_BYTES: Final = 8 * 1024 * 1024
MAX_STDERR_BYTES: Final = 1024 * 1024
DEFAULT_STDERR_BYTES: Final = 64 * 1024
MAX_DESCRIPTION_CHARS: Final = 8_000

_TAG = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OWN_VARIABLES = "SOONG_"

FieldProblem: TypeAlias = tuple[str, str, str]
"""The field, what is wrong with it, and what to do."""

Text = Annotated[str, Field(min_length=1)]

TOOLS_FOLDER: Final = "tools"
SUFFIX: Final = ".json"
MAX_FILES: Final = 500
MAX_FILE_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64


class ToolFile(BaseModel):
    """The fields of a file and their JSON types; :func:`read_tool` checks them against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    name: Text
    description: Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION_CHARS)]
    input_schema: dict[str, Any]
    permission: Literal["readonly", "write"] = "write"
    tags: tuple[Text, ...] = Field(default=(), strict=False)
    command_type: Literal["exec", "shell"] = "exec"
    command: Text
    args: tuple[str, ...] = Field(default=(), strict=False)
    working_dir: Text | None = None
    env_allowlist: tuple[Text, ...] = Field(default=(), strict=False)
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    stdout_limit_bytes: Annotated[int, Field(ge=1)] | None = None
    stderr_limit_bytes: Annotated[int, Field(ge=1)] | None = None


class Bounds(Value):
    """The upper limits of a file's values. ``roots`` are the resolved folders in which a working_dir may lie."""

    roots: tuple[Path, ...] = ()
    max_timeout: timedelta = MAX_TIMEOUT
    max_stdout_bytes: int = MAX_STDOUT_BYTES
    max_stderr_bytes: int = MAX_STDERR_BYTES

    @classmethod
    def of(cls, config: Config, max_timeout: timedelta = MAX_TIMEOUT) -> "Bounds":
        roots = tuple(Path(os.path.realpath(root)) for root in config.paths.allowed_write_roots)
        return cls(roots, max_timeout, min(config.commands.max_output_bytes, MAX_STDOUT_BYTES))


class DeclaredTool(Value):
    """A checked definition. ``arguments`` are the elements of ``args``; ``origin`` is its file."""

    name: str
    description: str
    input_schema: JsonObject
    permission: Permission
    tags: frozenset[str]
    is_shell: bool
    command: str
    arguments: tuple[TemplateArgument, ...]
    working_dir: Path | None
    env_allowlist: tuple[str, ...]
    timeout: timedelta | None
    stdout_limit_bytes: int
    stderr_limit_bytes: int
    origin: str


def read_tool(document: Json, origin: str, bounds: Bounds) -> DeclaredTool | list[FieldProblem]:
    """Return the definition that a file's JSON value makes, or everything that is wrong with it."""
    if not isinstance(document, Mapping):
        return [("$", "is not an object", "write one tool definition a file")]
    try:
        file = ToolFile.model_validate(document)
    except ValidationError as error:
        return [_problem_of(item["loc"], item["msg"], item["type"]) for item in error.errors()]
    problems = [
        *_naming_problems(file),
        *_schema_problems(file),
        *_command_problems(file),
        *_place_problems(file, bounds),
    ]
    return problems or _made(file, origin, bounds)


def _made(file: ToolFile, origin: str, bounds: Bounds) -> DeclaredTool:
    return DeclaredTool(
        name=file.name,
        description=file.description,
        input_schema=file.input_schema,
        permission=Permission(file.permission),
        tags=frozenset({*file.tags, "declarative", file.permission}),
        is_shell=file.command_type == "shell",
        command=file.command,
        arguments=tuple(map(TemplateArgument.parse, file.args)),
        working_dir=None if file.working_dir is None else Path(file.working_dir),
        env_allowlist=file.env_allowlist,
        timeout=None if file.timeout_ms is None else timedelta(milliseconds=file.timeout_ms),
        stdout_limit_bytes=file.stdout_limit_bytes or bounds.max_stdout_bytes,
        stderr_limit_bytes=file.stderr_limit_bytes or min(DEFAULT_STDERR_BYTES, bounds.max_stderr_bytes),
        origin=origin,
    )


def _problem_of(loc: tuple[int | str, ...], message: str, kind: str) -> FieldProblem:
    place = dotted(loc) or "$"
    if kind == "extra_forbidden":
        return place[:100], "is not a field of a tool definition", f"it has {', '.join(ToolFile.model_fields)}"
    if kind == "missing":
        return place, "is missing", "add it"
    return place, f"is wrong: {message}", "fix it"


def _naming_problems(file: ToolFile) -> Iterator[FieldProblem]:
    try:
        check_name(file.name)
    except InvalidToolError as error:
        yield "name", f"{file.name[:100]!r} {error.problem}", "rename the tool"
    namespace = file.name.partition(".")[0]
    if namespace in NAMESPACE_TAGS:
        yield "name", f"the namespace {namespace!r} is Soong's own", "choose another, such as 'team.lint'"
    if not file.description.strip():
        yield "description", "is blank; a model chooses a tool by it", "say what the tool does"
    other = "readonly" if file.permission == "write" else "write"
    for position, tag in enumerate(file.tags):
        place = f"tags[{position}]"
        if not _TAG.fullmatch(tag):
            yield place, f"{tag[:100]!r} is not a tag", "write a-z, 0-9, '_' and '-', beginning with a letter"
        elif tag in NAMESPACE_TAGS:
            yield place, f"{tag!r} is a tag of Soong's own tools", "choose another"
        elif tag == other:
            yield place, f"{tag!r} contradicts permission {file.permission!r}", "remove one of the two"


def _schema_problems(file: ToolFile) -> Iterator[FieldProblem]:
    for problem in schema_problems(file.input_schema):
        yield "input_schema", str(problem), "keep to the supported subset of JSON Schema"
    if file.input_schema.get("type") != "object":
        yield "input_schema", "$: its type is not 'object'; a tool takes named arguments", 'add "type": "object"'


def _command_problems(file: ToolFile) -> Iterator[FieldProblem]:
    if OPENING in file.command:
        yield "command", "holds a field; write fields in args only", "move it into args"
    arguments: list[TemplateArgument] = []
    for position, text in enumerate(file.args):
        try:
            arguments.append(TemplateArgument.parse(text))
        except ValueError as error:
            yield f"args[{position}]", str(error), "name a field of input_schema"
            arguments.append(TemplateArgument(("",), ()))
        if "\0" in text:
            yield f"args[{position}]", "holds a NUL character", "remove it"
    for position, problem in field_problems(arguments, file.input_schema):
        yield f"args[{position}]", problem, "let it name a scalar field of input_schema"
    yield from _shell_problems(file, arguments) if file.command_type == "shell" else _exec_problems(file)


def _shell_problems(file: ToolFile, arguments: list[TemplateArgument]) -> Iterator[FieldProblem]:
    if file.permission != "write" and "dangerous" not in file.tags:
        problem = "'shell' needs permission 'write' or the tag 'dangerous'"
        yield "command_type", problem, "set one of them, or use 'exec'"
    if "\0" in file.command:
        yield "command", "holds a NUL character", "remove it"
    if OPENING not in file.command:
        for position, problem in shell_problems([TemplateArgument((file.command,), ()), *arguments]):
            yield f"args[{position - 1}]" if position else "command", problem, "write the line so that it is one word"


def _exec_problems(file: ToolFile) -> Iterator[FieldProblem]:
    if "\0" in file.command or ("/" in file.command and not file.command.startswith("/")):
        problem = f"{file.command[:100]!r} is neither the name of a program nor an absolute path"
        yield "command", problem, "write 'python3' or '/usr/bin/python3'; write arguments in args"
    elif shell_string((file.command,), file.args):
        yield "args", "hand a command string to a shell", "set command_type to 'shell' and write the line itself"


def _place_problems(file: ToolFile, bounds: Bounds) -> Iterator[FieldProblem]:
    if file.working_dir is not None:
        yield from _working_dir_problems(file.working_dir, bounds)
    for position, name in enumerate(file.env_allowlist):
        if not _VARIABLE.fullmatch(name):
            yield f"env_allowlist[{position}]", f"{name[:100]!r} is not the name of a variable", "write its name only"
        elif name.upper().startswith(_OWN_VARIABLES):
            yield f"env_allowlist[{position}]", f"{name!r} belongs to Soong itself", "remove it"
    longest = bounds.max_timeout // timedelta(milliseconds=1)
    for field, value, most in (
        ("timeout_ms", file.timeout_ms, longest),
        ("stdout_limit_bytes", file.stdout_limit_bytes, bounds.max_stdout_bytes),
        ("stderr_limit_bytes", file.stderr_limit_bytes, bounds.max_stderr_bytes),
    ):
        if value is not None and value > most:
            yield field, f"is {value}, above the maximum {most}", "lower it"


def _working_dir_problems(working_dir: str, bounds: Bounds) -> Iterator[FieldProblem]:
    hint = "name an absolute folder inside paths.allowed_write_roots of config.toml, or leave it out for the run's own"
    if OPENING in working_dir:
        yield "working_dir", "holds a field; write fields in args only", hint
    elif "\0" in working_dir or not working_dir.startswith("/"):
        yield "working_dir", f"{working_dir[:100]!r} is not absolute; nothing in it is expanded", hint
    elif not is_inside(working_dir, bounds.roots):
        yield "working_dir", f"{working_dir[:100]!r} lies outside the allowed roots", hint


def is_inside(folder: str | Path, roots: tuple[Path, ...]) -> bool:
    """Say whether a folder leads into one of the resolved roots as things are now."""
    resolved = Path(os.path.realpath(folder))
    return any(is_below(resolved, root) for root in roots)


class ToolFiles(Value):
    """The content of a folder, in the order of file names: the tools, and all problems of the other files."""

    tools: tuple[DeclaredTool, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_tool_files(home: Path, bounds: Bounds) -> ToolFiles:
    """Read every definition of a home; none when it has no such folder. Never raises for the content of a file."""
    folder = home / TOOLS_FOLDER
    try:
        names = _names(folder)
    except FileNotFoundError:
        return ToolFiles()
    except (UsageError, OSError) as error:
        return ToolFiles(problems=(_problem(folder, "cannot be used", error),))
    tools: dict[str, DeclaredTool] = {}
    problems: list[Problem] = []
    for name in names[:MAX_FILES]:
        path = folder / name
        found = _read(path, bounds)
        if isinstance(found, list):
            problems += found
        elif found.name in tools:
            problem = f"{found.name!r} is the name of the tool in {tools[found.name].origin!r}, too"
            problems.append(Problem(f"{path}: name", problem, "rename one of the two"))
        else:
            tools[found.name] = found
    if len(names) > MAX_FILES:
        problems.append(Problem(str(folder), f"holds {len(names)} files", f"keep at most {MAX_FILES}"))
    return ToolFiles(tuple(tools.values()), tuple(problems))


def _names(folder: Path) -> list[str]:
    if not folder.exists() and not folder.is_symlink():
        raise FileNotFoundError
    with opened_directory(Path(os.path.realpath(folder))) as descriptor:
        _refuse_foreign(descriptor, folder)
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries]
    return sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def _read(path: Path, bounds: Bounds) -> DeclaredTool | list[Problem]:
    try:
        document = _document(path)
    except InvalidJsonError as error:
        return [Problem(str(path), f"is not JSON: {error}", "fix it")]
    except (UsageError, OSError) as error:
        return [_problem(path, "cannot be used", error)]
    read = read_tool(document, str(path), bounds)
    if isinstance(read, DeclaredTool):
        return read
    return [Problem(f"{path}: {field}", problem, hint) for field, problem, hint in read]


def _document(path: Path) -> Json:
    resolved = Path(os.path.realpath(path))
    with opened_file(resolved) as descriptor:
        _refuse_foreign(descriptor, path)
        with opened_directory(resolved.parent) as around:
            _refuse_foreign(around, resolved.parent)
        raw = read_up_to(descriptor, MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"it has more than {MAX_FILE_BYTES} bytes; that is not a tool definition")
    try:
        value = parse_strict(raw.decode("utf-8"), max_bytes=MAX_FILE_BYTES, max_depth=MAX_DEPTH)
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"byte {error.start} is not UTF-8") from error
    canonical(value)  # a number beyond every float, or half a character, has no digest in the catalogue
    return value


def _refuse_foreign(descriptor: int, path: Path) -> None:
    """Refuse what others could have written.
    Raises: UsageError, names the owner or the possible writers, and the fix.
    """
    status = os.fstat(descriptor)
    if status.st_uid not in {os.geteuid(), 0}:
        raise UsageError(f"{str(path)!r} belongs to user {status.st_uid}; chown it to the user that runs Soong")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{str(path)!r} can be written by others; chmod go-w {path}")


def _problem(path: Path, problem: str, error: Exception) -> Problem:
    what, _, hint = str(error).partition("; ")
    return Problem(str(path), f"{problem}: {what}", hint or "fix it, or remove the file")
