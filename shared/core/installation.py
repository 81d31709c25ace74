"""The place of the installation: the folder that holds the package, and the folders of its modules."""

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

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
