"""The environment of a child process and its program: the absolute path behind ``argv[0]``.

A name is looked up once per call. The path found is what a person is shown, what is remembered and what is executed; no
part looks it up again later (CMD-01, CMD-05). A folder that the run can write gives no program by name, neither to us
nor to a child: a file that the run wrote there would run in place of the program that was meant.
"""

import os
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import Roots, is_below, write_roots

DEFAULT_NAMES: Final = ("PATH", "HOME", "TMPDIR")
FALLBACK_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MAX_PROGRAM_BYTES: Final = 4095
_MAX_LINKS: Final = 40

SYSTEM_FOLDERS: Final = frozenset(
    f"{root}{name}"
    for root in ("/", "/usr/", "/usr/local/", "/opt/homebrew/", "/opt/local/", "/home/linuxbrew/.linuxbrew/")
    for name in ("bin", "sbin")
) | {"/snap/bin", "/run/current-system/sw/bin"}
"""The program folders of an operating system and its package managers."""
_NIX_STORE: Final = Path("/nix/store")


def untrusted_folders(place: Roots) -> tuple[Path, ...]:
    """Return the folders that a run can write or works on: no program is taken from there by its name."""
    return (place.project, *write_roots(place), *place.writable_by_rule)


def child_environment(
    names: Collection[str] = (),
    secret_names: Collection[str] = (),
    *,
    declared: Collection[str] = (),
    untrusted: Collection[Path] = (),
) -> dict[str, str]:
    """Return the full environment of a child: PATH, HOME, TMPDIR and those of the named variables that are set.

    ``names`` is what the configuration passes to every program, ``secret_names`` what it marks secret: such a variable
    is left out although it is in ``names``, and passed only when ``declared``, the names in the tool's or hook's own
    definition, has it. No locale is passed by default: the programs' own default is the same on every machine. PATH has
    no folder that lies in ``untrusted``: the child itself looks up programs there.
    """
    wanted = (*DEFAULT_NAMES, *(name for name in names if name not in secret_names), *declared)
    found = {name: os.environ[name] for name in wanted if name in os.environ}
    return with_trusted_path(found, untrusted)


def with_trusted_path(environment: Mapping[str, str], untrusted: Collection[Path]) -> dict[str, str]:
    """Return an environment whose PATH has no relative folder and none that lies in, or leads into, ``untrusted``."""
    folders = (
        folder for folder in _absolute_folders(environment.get("PATH", "")) if not _leads_into(Path(folder), untrusted)
    )
    return {**environment, "PATH": os.pathsep.join(folders) or FALLBACK_PATH}


def find_program(name: str, environment: Mapping[str, str], *, cwd: Path, untrusted: Collection[Path] = ()) -> Path:
    """Return the absolute path of a program, its folder without links; the file itself may be a link.

    A name without slash is looked up in the PATH of ``environment``, past folders in ``untrusted`` (where the caller's
    own files could replace a program); one with a slash is found from ``cwd``, wherever that leads. The last link
    is kept because programs look at the name they are called by.
    Raises: PathRefusedError, it cannot be a program, is not there, or is not executable; ``hint`` is the next step.
    """
    if not name:
        raise PathRefusedError(PathRefusal.INVALID, name, "is not a program", "the first argument names the program")
    if "\0" in name or any("\ud800" <= char <= "\udfff" for char in name):
        raise PathRefusedError(PathRefusal.INVALID, name, "holds a character that no program name has")
    if len(name.encode("utf-8")) > MAX_PROGRAM_BYTES:
        raise PathRefusedError(PathRefusal.INVALID, f"{name[:80]}…", "is longer than any path")
    if name.rstrip("/").rpartition("/")[2] in {"", ".", ".."}:
        raise PathRefusedError(PathRefusal.NOT_REGULAR, name, "is a directory", "name the program itself")
    if "/" not in name:
        return _on_path(name, environment, untrusted)
    folder, _, last = str(cwd / name).rstrip("/").rpartition("/")
    found = Path(os.path.realpath(folder or "/"), last)
    _check_executable(found, name)
    return found


def find_own_program(name: str, untrusted: Collection[Path]) -> Path:
    """Return a program that Soong itself calls for a run: that of our own environment, else the first one on PATH.

    One in a folder of ``untrusted`` is passed over, but for our own environment's, which comes last then: no file tool
    writes that environment wherever it lies, and the interpreter that runs us is in it.
    Raises: PathRefusedError, there is none.
    """
    own = own_folders()
    environment = {"PATH": os.pathsep.join((*map(str, own), child_environment()["PATH"]))}
    try:
        return find_program(name, environment, cwd=Path("/"), untrusted=untrusted)
    except PathRefusedError:
        for found in (folder / name for folder in own):
            outside = [hop for hop in _hops(found) if hop.parent not in own]
            if _is_executable(found) and not _lies_in(outside, untrusted):
                return found
        raise


def own_folders() -> tuple[Path, ...]:
    """Return the folders of our own environment that hold programs, without links."""
    folders = (Path(sys.executable).parent, Path(sys.prefix, "bin"))
    return tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))


def programs_of_the_system(name: str, system: Collection[str] = SYSTEM_FOLDERS) -> list[Path]:
    """Return the programs of that name on PATH, of the system's own folders for programs and of our own environment.
    For what starts outside any run: nothing says there which other folders on PATH runs will write.
    """
    folders = dict.fromkeys(Path(os.path.realpath(folder)) for folder in child_environment()["PATH"].split(os.pathsep))
    own = own_folders()
    trusted = (each for each in folders if str(each) in system or is_below(each, _NIX_STORE) or each in own)
    return [found for folder in trusted if _is_executable(found := folder / name)]


def program_identity(program: Path) -> str:
    """Return what is at a program's path now: link target, device, inode, size, time of change; or ``absent``. Two
    looks that give the same text saw the same file with the same content, but for writers who set clocks back.
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
    """Say whether a program or folder, or anything that its links lead through, lies in one of the folders."""
    return _lies_in(list(_hops(found)), roots)


def _lies_in(paths: Collection[Path], roots: Collection[Path]) -> bool:
    return any(is_below(path, root) for path in paths for root in roots)


def _hops(found: Path) -> Iterator[Path]:
    """Yield a path and everything that a chain of links leads to from it; the folders of each without links."""
    for _ in range(_MAX_LINKS):
        found = Path(os.path.realpath(found.parent), found.name)
        yield found
        try:
            found = found.parent / found.readlink()
        except OSError:
            return


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


def _absolute_folders(path: str) -> list[str]:
    """Return PATH without empty and relative entries, which would mean whatever directory a command starts in."""
    return list(dict.fromkeys(os.path.normpath(folder) for folder in path.split(os.pathsep) if folder.startswith("/")))
