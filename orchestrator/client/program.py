"""How this program is called here, for the commands that messages propose: they must work as they are printed."""

import os
import shlex
import shutil
import sys
from functools import lru_cache
from pathlib import Path

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import require_text

NAME = "soong"


def program_elsewhere() -> str:
    """Return what a shell in any folder finds this program by."""
    called = program()
    is_relative_path = "/" in called and not called.startswith("/") and not called.startswith("'/")
    return shlex.quote(str(Path.cwd() / shlex.split(called)[0])) if is_relative_path else called


@lru_cache(maxsize=1)
def program() -> str:
    """Return what a shell in this folder finds this program by: its name if it is on PATH, else the path to it."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return shlex.join([sys.executable, "-m", NAME])
    if called.name != NAME or not called.exists():
        return NAME  # a program of the user's own that uses the SDK
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == called.resolve():
        return NAME
    path, here = called.absolute(), Path.cwd()
    return shlex.quote(os.path.relpath(path, here) if path.is_relative_to(here) else str(path))


def existing_folder(path: Path) -> Path:
    """Return the folder, absolute and resolved. Raises: UsageError."""
    require_text("--project", str(path))
    folder = Path(os.path.realpath(path.expanduser()))
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"--project {str(path)!r} {problem}; name the folder that the steps should work in")
    return folder


def program_folder(project: Path) -> Path:
    """Return where the relative paths of a program's session start: its current folder inside the project.

    A program that runs elsewhere (a server in ``/``) means the project that it names. ``project`` is an
    :func:`existing_folder`.
    """
    here = Path.cwd()  # resolved by the system
    return here if here.is_relative_to(project) else project
