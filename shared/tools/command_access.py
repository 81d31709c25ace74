"""What a program that a tool or hook starts may reach in a sandbox: the folders of its run, as its policy has them.

Without a sandbox nobody holds a program to it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.paths import is_below, write_roots
from soong.shared.tools.definition import RunDirs

_READING: Final = "code.read_file"


def access_of(
    place: RunDirs, *, can_write: bool, has_network: bool = False, more: Iterable[Path] = ()
) -> CommandAccess:
    """Return the access of a program of a run.

    It reads the project, the run's own folder, the read roots and ``more``, but for what a deny rule keeps from
    ``code.read_file``. With ``can_write`` it writes the write roots and what an allow rule opens.
    """
    roots = (*write_roots(place), *place.writable_by_rule)
    readable = (place.project, place.run_dir, *place.read_roots, *more, *(() if can_write else roots))
    return CommandAccess(
        readable=_resolved(readable),
        writable=_resolved(roots) if can_write else (),
        hidden=tuple(_withheld(place)),
        has_network=has_network,
    )


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))


def _withheld(place: RunDirs) -> Iterable[Path]:
    for one in place.withheld:
        # A rule about everything, or about more than the project, means calls: a program needs its own folder.
        if not one.is_asked and _READING in one.tools and not is_below(place.project, one.path):
            yield one.path
