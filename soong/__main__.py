"""The ``soong`` program: makes sure that our packages are ours, then runs the command line.

The folder that a command is called in is not on the path, but PYTHONPATH may name a project that has a ``worker/`` or
``shared/`` of its own, which would be found before ours.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OURS = frozenset({"orchestrator", "shared", "soong", "worker"})


class OwnPackages(MetaPathFinder):
    """Finds our packages where this one was installed, before anything else is asked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and fullname in OURS:
            return PathFinder.find_spec(fullname, [str(Path(__file__).resolve().parents[1])], target)
        return None


def main() -> None:
    """Run the command line; does not return."""
    sys.meta_path.insert(0, OwnPackages())
    from orchestrator.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
