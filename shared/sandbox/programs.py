"""What a child process is given and which program it is: its environment and the absolute path behind ``argv[0]``.

A name is looked up once. The path found is what a person is shown, what is remembered and what is executed; nothing is
looked up again later, by nobody (CMD-01, CMD-05).
"""

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from shared.sandbox.descriptors import PathRefusal, PathRefusedError
from shared.sandbox.paths import is_below

DEFAULT_NAMES: Final = ("PATH", "HOME", "TMPDIR")
FALLBACK_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MAX_PROGRAM_BYTES: Final = 4095


def child_environment(
    names: Collection[str] = (), secret_names: Collection[str] = (), *, declared: Collection[str] = ()
) -> dict[str, str]:
    """Return the whole environment of a child: PATH, HOME, TMPDIR and those of the named variables that are set.

    ``names`` is what the configuration passes to every program, ``secret_names`` what it marks secret: such a variable
    is left out although it is in ``names``, and passed only when ``declared``, the names in the tool's or hook's own
    definition, has it. No locale is passed by default: the programs' own default is the same on every machine.
    """
    wanted = (*DEFAULT_NAMES, *(name for name in names if name not in secret_names), *declared)
    found = {name: os.environ[name] for name in wanted if name in os.environ}
    return found | {"PATH": os.pathsep.join(_absolute_folders(found.get("PATH", ""))) or FALLBACK_PATH}


def find_program(name: str, environment: Mapping[str, str], *, cwd: Path, untrusted: Collection[Path] = ()) -> Path:
    """Return the absolute path of a program, its folder without links; the file itself may be a link.

    A name without slash is looked up in the PATH of ``environment``, past folders in ``untrusted`` (where the caller's
    own files could stand in for a program); one with a slash is found from ``cwd``, wherever that leads. The last link
    is kept because programs look at the name they are called by.

    Raises:
        PathRefusedError: it cannot be a program, is not there, or is not executable; ``hint`` says what to do.
    """
    _refuse_unusable(name)
    if "/" not in name:
        return _on_path(name, environment, untrusted)
    folder, _, last = str(cwd / name).rstrip("/").rpartition("/")
    found = Path(os.path.realpath(folder or "/"), last)
    _check_executable(found, name)
    return found


def program_identity(program: Path) -> str:
    """Return what stands at a program's path now: link target, device, inode, size, time of change; or ``absent``.

    Two looks that give the same text saw the same file with the same content, but for writers who set clocks back.
    """
    try:
        target, status = os.path.realpath(program, strict=True), program.stat()
    except OSError:
        return "absent"
    return f"{target}:{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _on_path(name: str, environment: Mapping[str, str], untrusted: Collection[Path]) -> Path:
    passed_over = ""
    for folder in _absolute_folders(environment.get("PATH", "")):
        found = Path(os.path.realpath(folder), name)
        if not _is_executable(found):
            continue
        if not _leads_into(found, untrusted):
            return found
        passed_over = passed_over or str(found)
    if passed_over:
        problem = f"is on PATH only at {passed_over!r}, which the run itself can write"
        raise PathRefusedError(PathRefusal.NOT_FOUND, name, problem, f"to run that very file name it: {passed_over}")
    hint = "install it, or name the program by its path"
    raise PathRefusedError(PathRefusal.NOT_FOUND, name, "is not a program on PATH", hint)


def _leads_into(found: Path, roots: Collection[Path]) -> bool:
    """Say whether a program, or the file it is a link to, lies in one of the folders."""
    target = Path(os.path.realpath(found))
    return any(is_below(found, root) or is_below(target, root) for root in roots)


def _check_executable(found: Path, name: str) -> None:
    try:
        mode = found.stat().st_mode
    except OSError as error:
        problem = f"does not lead to a program ({str(found)!r}: {error.strerror})"
        raise PathRefusedError(PathRefusal.NOT_FOUND, name, problem, "list the directory to see its entries") from error
    if not stat.S_ISREG(mode):
        raise PathRefusedError(PathRefusal.NOT_REGULAR, name, "is not a regular file", "name the program itself")
    if not os.access(found, os.X_OK):
        hint = 'run it by its interpreter, such as ["python3", "script.py"]'
        raise PathRefusedError(PathRefusal.INVALID, name, "is not executable", hint)


def _is_executable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False


def _refuse_unusable(name: str) -> None:
    if not name:
        raise PathRefusedError(PathRefusal.INVALID, name, "is no program", "the first argument names the program")
    if "\0" in name or any("\ud800" <= char <= "\udfff" for char in name):
        raise PathRefusedError(PathRefusal.INVALID, name, "holds a character that no program name has")
    if len(name.encode("utf-8")) > MAX_PROGRAM_BYTES:
        raise PathRefusedError(PathRefusal.INVALID, f"{name[:80]}…", "is longer than any path")
    if name.rstrip("/").rpartition("/")[2] in {"", ".", ".."}:
        raise PathRefusedError(PathRefusal.NOT_REGULAR, name, "is a directory", "name the program itself")


def _absolute_folders(path: str) -> list[str]:
    """Return PATH without empty and relative entries, which would mean whatever directory a command starts in."""
    return list(dict.fromkeys(os.path.normpath(folder) for folder in path.split(os.pathsep) if folder.startswith("/")))
