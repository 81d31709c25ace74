"""Reading ``${SOONG_AGENT_HOME}/tools``: only files that nobody but the user can have written (CMD-02).

A definition names a program that will run with the user's rights, so a file is trusted by who could write it: it and
its folder belong to the user or to root and are writable by nobody else. A project's folders are never looked at.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from soong.shared.core.errors import InvalidJsonError, Problem, UsageError
from soong.shared.core.jsontext import Json, canonical, parse_strict
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import opened_directory, opened_file
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool, read_tool

TOOLS_FOLDER: Final = "tools"
SUFFIX: Final = ".json"
MAX_FILES: Final = 500
MAX_FILE_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64


class ToolFiles(Value):
    """What a folder holds, in the order of file names: the tools, and all that is wrong with the other files."""

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
        raw = b"".join(_chunks(descriptor))
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"it has more than {MAX_FILE_BYTES} bytes; that is not a tool definition")
    try:
        value = parse_strict(raw.decode("utf-8"), max_bytes=MAX_FILE_BYTES, max_depth=MAX_DEPTH)
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"byte {error.start} is not UTF-8") from error
    canonical(value)  # a number beyond every float, or half a character, has no digest in the catalogue
    return value


def _chunks(descriptor: int) -> Iterator[bytes]:
    left = MAX_FILE_BYTES + 1
    while left > 0 and (chunk := os.read(descriptor, left)):
        left -= len(chunk)
        yield chunk


def _refuse_foreign(descriptor: int, path: Path) -> None:
    """Refuse what others could have written.

    Raises:
        UsageError: says whose it is or who may write it, and how to fix that.
    """
    status = os.fstat(descriptor)
    if status.st_uid not in {os.geteuid(), 0}:
        raise UsageError(f"{str(path)!r} belongs to user {status.st_uid}; chown it to the user that runs Soong")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{str(path)!r} can be written by others; chmod go-w {path}")


def _problem(path: Path, problem: str, error: Exception) -> Problem:
    what, _, hint = str(error).partition("; ")
    return Problem(str(path), f"{problem}: {what}", hint or "fix it, or remove the file")
