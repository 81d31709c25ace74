"""Files that have another name elsewhere: hard links, which no path can tell from the file they share (FS-06).

A second name in the project for a secret outside would be read like any file of the project, so a file with more than
one name asks before it is read, like a sensitive one. Package managers fill environments with hard links to their
stores; in such folders, and in those that only the system's owner fills, a file is read freely unless its mode keeps
it from others, as that of every key and credential does. A write needs no such rule: it replaces the name and never
the shared content.
"""

import os
import stat
from pathlib import Path
from typing import Final

_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages", "node_modules", ".venv", "venv", ".pnpm-store"})
_SYSTEM_FOLDERS: Final = ("/usr/", "/nix/store/")
_FOR_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def is_linked_elsewhere(path: Path, status: os.stat_result) -> bool:
    """Say whether a file has more names that its path does not explain."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink < 2:
        return False
    is_explained = str(path).startswith(_SYSTEM_FOLDERS) or not _PACKAGE_FOLDERS.isdisjoint(path.parts)
    return not is_explained or not status.st_mode & _FOR_OTHERS


def stands_linked(path: Path) -> bool:
    """Say the same of the current file at a resolved path; nothing there has no other name."""
    try:
        return is_linked_elsewhere(path, path.lstat())
    except OSError:
        return False
