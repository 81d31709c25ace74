"""``soong`` in an installation that lacks the modules in ``LEFT_OUT``: a program to fork, which imports ours again."""

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Missing(MetaPathFinder):
    """Finds none of them, before any other finder can."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{part}.") for part in os.environ["LEFT_OUT"].split()):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    for imported in [name for name in sys.modules if name.partition(".")[0] == "soong"]:
        del sys.modules[imported]
    sys.meta_path.insert(0, Missing())
    runpy.run_module("soong.orchestrator.cli", run_name="__main__", alter_sys=True)
