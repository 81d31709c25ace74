"""The environment of the processes that we start: our settings, and where what we import is found.

Children run ``python -P``, so the folder they are started in is not on their path. ``PYTHONPATH`` still is: in a
project that sets it and has a ``celery.py`` of its own, the library has to come first. The folders of the user's own
modules come from the command that starts the children, as absolute paths; no plan and no submitter names any.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.installation import IMPORT_FOLDERS
from soong.shared.core.settings import Settings
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.process import HAS_SUBREAPER

PARENT_FD: Final = "SOONG_PARENT_FD"
STATUS_FD: Final = "SOONG_STATUS_FD"


def child_environment(settings: Settings, **more: str) -> dict[str, str]:
    """Return the environment of a child: this process's own, with our settings as this process has them."""
    environment = dict(os.environ)
    for name in settings.model_fields_set:
        environment.pop(f"SOONG_{name.upper()}_FILE", None)
        environment[f"SOONG_{name.upper()}"] = _text(getattr(settings, name))
    environment["SOONG_AGENT_HOME"] = str(settings.home)
    if settings.data_dir is not None:
        environment["SOONG_DATA_DIR"] = str(settings.data)
    environment["SOONG_IMPORT_PATH"] = os.pathsep.join(settings.import_folders)
    path = environment.get("PYTHONPATH", "")
    if path:
        here = Path.cwd()  # a child's own folder is another: what is relative here would name something else there
        folders = (str(here / folder) for folder in path.split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join((*IMPORT_FOLDERS, *folders))
    return {**environment, **more}


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def kept_command(argv: Sequence[str], *, control: int = -1, status: int = -1) -> list[str]:
    """Return the argv that runs a worker so that all its descendants end with it
    (:mod:`soong.shared.sandbox.subreaper`).

    ``control`` is a pipe whose end says that this process has ended, ``status`` one that gets the worker's own id.
    Where there can be no subreaper, the argv stays as it is.
    """
    if not HAS_SUBREAPER:
        return list(argv)
    own = [subreaper.STAND_IN, str(control), str(status), str(timing.GRACE_S + timing.SHORT_LIMIT_S)]
    return [sys.executable, "-I", "-S", subreaper.__file__, *own, *argv]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs a module of ours in this environment's interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]
