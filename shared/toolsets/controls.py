"""The files that our own program is made of, which no file tool writes (FS-09), and the sandbox that keeps them out.

An agent that could write the interpreter's start files, a package of ours or a module of the user's that workers import
would decide in the place of the gate at the next start. Owns which those are; that they are refused is
:mod:`soong.shared.sandbox.paths`.
"""

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.installation import MODULE_FOLDERS
from soong.shared.core.secret_values import secret_files
from soong.shared.core.settings import Settings
from soong.shared.sandbox.bubblewrap.mounts import HostLayout
from soong.shared.sandbox.bubblewrap.runner import BubblewrapRunner
from soong.shared.sandbox.names import plain
from soong.shared.sandbox.paths import ImportGuard
from soong.shared.sandbox.process import ProcessRunner

_OF_A_PREFIX: Final = ("bin", "sbin", "Scripts", "lib", "lib32", "lib64", "Lib", "DLLs", "pyvenv.cfg")
_PATHS: Final = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_START_MODULES: Final = ("sitecustomize", "usercustomize")
_OF_TESTS: Final = frozenset({"test", "tests"})
"""Packages that our program does not import and a project has of its own."""

SHOWN_FOLDERS = ("skills", "tools", "hooks")
"""The folders of the home that hold parts of the programs: they are shown, everything else of it is not."""


def controls_of(config: Config, modules: Iterable[str]) -> tuple[Path, ...]:
    """Return every file and folder that steers a process of ours: its program, its hooks, the user's own modules, what
    MCP servers are made of, and the files of their secrets.
    """
    words = [word for hook in config.hooks.all for word in hook.command]
    words += [word for server in config.mcp.servers.values() for word in (server.command, *server.args)]
    named = (Path(word) for word in words if word.startswith("/") and not Path(word).is_dir())
    found = (*program_files(), *named, *config.secret_files, *module_files(modules), *_LOADED.files())
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1)
def program_files() -> tuple[Path, ...]:
    """Return the interpreter, its start files, all installed packages and our own. Only the folders of a prefix that
    hold programs and modules: a project may lie in the folder of its environment.
    """
    prefixes = dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))
    known = [Path(prefix, name) for prefix in prefixes for name in _OF_A_PREFIX]
    known += [Path(path) for name, path in sysconfig.get_paths().items() if name in _PATHS]
    known += map(Path, (sys.executable, *site.getsitepackages(), site.getusersitepackages()))
    known += MODULE_FOLDERS
    return tuple(dict.fromkeys(known))


def import_guard() -> ImportGuard:
    """Return what keeps other folders of the import path from replacing the program's modules."""
    folders = [Path(os.path.abspath(entry)) for entry in sys.path if entry]  # noqa: PTH100  # links are kept
    foreign = (folder for folder in folders if not _is_of_the_program(folder))
    return ImportGuard(tuple(dict.fromkeys(foreign)), _names_of_the_program())


def module_files(modules: Iterable[str]) -> Iterator[Path]:
    """Yield where modules of the user's own lie, as file and as package; nothing is imported for it."""
    for module in modules:
        top, *inner = module.split(".")
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            continue  # the process that registers it reports the problem
        if spec is None:
            continue
        places = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
        yield from (*places, *(place.with_suffix(".py") for place in places if inner))
        if spec.origin and not places:
            yield Path(spec.origin)


class _LoadedFiles:
    """The files of the user's own that this process has imported, whatever module led to them.

    Each module is looked at once. There are thousands, and a look writes to its memory: a forked worker would copy 10
    MiB of pages that it shares with its service.
    """

    def __init__(self) -> None:
        self._found: dict[Path, None] = {}
        self._newest: tuple[str, object] = ("", None)

    def files(self) -> Iterable[Path]:
        """Return them, in the order in which they were found. One that is unloaded stays among them."""
        new = _modules_after(*self._newest)
        for _name, module in reversed(new):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not _is_of_the_program(file):
                self._found[Path(file)] = None
        if new:
            self._newest = new[0]
        return tuple(self._found)


def _modules_after(name: str, module: object) -> Sequence[tuple[str, object]]:
    """Return the modules that were imported after this one, the newest first; all where it is not there any more."""
    found: list[tuple[str, object]] = []
    try:
        for entry in reversed(sys.modules.items()):
            if entry[0] == name and entry[1] is module:
                break
            found.append(entry)
    except RuntimeError:  # another thread imports something: look at all of them, in a copy
        return list(sys.modules.items())[::-1]
    return found


_LOADED: Final = _LoadedFiles()


def _is_of_the_program(path: Path | str) -> bool:
    return f"{path}/".startswith(_program_folders())


@lru_cache(maxsize=1)
def _program_folders() -> tuple[str, ...]:
    """Return the same as prefixes: one comparison in C for each of thousands of files."""
    return tuple(f"{str(known).rstrip('/')}/" for known in program_files())


@lru_cache(maxsize=1)
def _names_of_the_program() -> frozenset[str]:
    """Return the top-level names of the standard library, of what is installed and of our own packages."""
    folders = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    installed = {name.partition(".")[0] for folder in folders for name in _entries(folder)}
    names = {*sys.stdlib_module_names, *filter(str.isidentifier, installed), "soong", *_START_MODULES}
    return frozenset(map(plain, names - _OF_TESTS))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names are wanted
    except OSError:
        return []


def command_runner(settings: Settings, config: Config) -> ProcessRunner | BubblewrapRunner:
    """Return the runner that ``commands.sandbox`` asks for. Nothing is started, nothing is tried.
    Raises: InvalidConfigError, a folder of the sandbox is not an absolute path.
    """
    commands = config.commands
    readable, writable = (
        tuple(_absolute(path, f"commands.{name}") for path in paths)
        for name, paths in (("sandbox_read", commands.sandbox_read), ("sandbox_write", commands.sandbox_write))
    )
    if commands.sandbox == "off":
        return ProcessRunner()
    own = (settings.home, settings.data, settings.runtime_dir, *secret_files(settings))
    host = HostLayout(
        user_home=_resolved(Path.home()),
        own=tuple(dict.fromkeys(map(_resolved, own))),
        shown=tuple(settings.home / name for name in SHOWN_FOLDERS),
        controls=controls_of(config, (*settings.tools, *settings.functions)),
        readable=readable,
        writable=writable,
    )
    return BubblewrapRunner(host, is_required=commands.sandbox == "required")


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _absolute(path: str, place: str) -> Path:
    if not path.startswith("/"):
        raise InvalidConfigError(
            f"{place}: {path!r} is not an absolute path; write it in full, such as /home/you/.cache"
        )
    return Path(path)
