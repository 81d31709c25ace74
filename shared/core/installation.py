"""The place of the installation: its package, the folders of its modules, and parts that it may leave out."""

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final

from soong.shared.core.log import get_logger

_SPEC: Final = find_spec("soong")
assert _SPEC is not None, "this module is a part of it"
assert _SPEC.origin is not None, "soong is a package with an __init__.py"

DISTRIBUTION: Final = "soong-agents"
"""The name by which package managers know this program; it is imported and called as ``soong``."""

PACKAGE: Final = Path(_SPEC.origin).resolve().parent
INSTALL_ROOT: Final = PACKAGE.parent
"""The folder on the import path: ``site-packages``, or the top of a checkout."""

IMPORT_FOLDERS: Final = tuple(dict.fromkeys((str(INSTALL_ROOT), *map(sysconfig.get_path, ("purelib", "platlib")))))
"""The folders of this program and of its libraries. In a wheel's environment that is one folder."""

MODULE_FOLDERS: Final = tuple(
    dict.fromkeys((PACKAGE, *((PACKAGE / part).resolve() for part in ("orchestrator", "shared", "worker"))))
)
"""In a checkout the three parts are links that lead out of the package."""


def install_line(extra: str) -> str:
    """Return the command that adds an extra to this installation: to a checkout, or to the installed package."""
    is_checkout = (INSTALL_ROOT / "pyproject.toml").is_file()
    what = f"-e '{INSTALL_ROOT}[{extra}]'" if is_checkout else f"'{DISTRIBUTION}[{extra}]'"
    return f"{'pip' if find_spec('pip') else 'uv pip'} install {what}"


log = get_logger(__name__)


class OptionalPart:
    """A block that ends early when the package of its part is not installed. Other failures of imports are raised."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        is_left_out = isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith(f"{self._package}.")
        if is_left_out:
            log.info("part_left_out", package=self._package)
        return is_left_out
