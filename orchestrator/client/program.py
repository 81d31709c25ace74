"""How this program is called here, for the commands that messages propose: they must work as they are printed."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

NAME = "soong"

_called: ContextVar[str] = ContextVar("how the user calls this program", default="")


def program() -> str:
    """Return what a shell in this folder finds this program by: its name if it is on PATH, else the path to it."""
    return _called.get() or _own_name()


def program_elsewhere() -> str:
    """Return what a shell in any folder finds this program by."""
    called = program()
    is_relative_path = "/" in called and not called.startswith("/") and not called.startswith("'/")
    return shlex.quote(str(Path.cwd() / shlex.split(called)[0])) if is_relative_path else called


@contextmanager
def called_as(name: str) -> Iterator[None]:
    """Call the program so in this context: its texts are for a user in another folder, who calls it so."""
    token = _called.set(name)
    try:
        yield
    finally:
        _called.reset(token)


@lru_cache(maxsize=1)
def _own_name() -> str:
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
