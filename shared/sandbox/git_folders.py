"""Folders that git takes for a repository although they are not called ``.git`` (FS-09).

Git knows such a folder by what is in it: ``HEAD`` with ``objects`` and ``refs``, or ``HEAD`` with ``commondir``, which
names where the two are. It then runs what the folder's controls name. So a control of a repository is not written, and
neither is the entry that makes a repository of a folder that holds a control already: the order of writes is the
agent's to choose.
"""

import os
from pathlib import Path
from typing import Final

from soong.shared.sandbox.names import GIT_CONTROLS, plain

_HEAD: Final = "HEAD"
_COMMON: Final = "commondir"
_STORE: Final = frozenset({"objects", "refs"})
_KNOWN: Final = {plain(name): name for name in (_HEAD, *_STORE, *GIT_CONTROLS)}


def steers_repository(path: Path) -> bool:
    """Say whether writing a file gives a repository a control, or makes a repository of a folder with one."""
    return any(
        (name := _KNOWN.get(plain(part), "")) and _is_steered(Path(*path.parts[:at]), name)
        for at, part in enumerate(path.parts)
        if at > 0
    )


def _is_steered(folder: Path, written: str) -> bool:
    there = {name for name in _KNOWN.values() if os.path.lexists(folder / name)}
    after = there | {written}
    is_repository = _HEAD in after and (_COMMON in after or after >= _STORE)
    if not is_repository or after.isdisjoint(GIT_CONTROLS):
        return False
    return written in GIT_CONTROLS or written not in there
