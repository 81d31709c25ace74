"""What rules of the session keep from searches and listings that come from above (FS-06, PER-10)."""

from pathlib import Path
from typing import Final

from soong.shared.sandbox.paths import is_below
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.result import ErrorType, ToolError

LISTS: Final = ("code.list_dir",)
SEARCHES: Final = ("code.search", "code.read_file")
"""The tools whose rules a search keeps, its own first: what it shows of a file is the file's content."""


def withheld_below(place: RunDirs, base: Path, tools: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a call of the first of ``tools`` on ``base`` leaves out.

    Raises:
        ToolError: all of the base is withheld.
    """
    own = tools[0]
    kept = [
        one
        for one in place.withheld
        if not one.tools.isdisjoint(tools)
        # A base that a rule asks about has been asked about.
        and not (one.is_asked and own in one.tools and is_below(base, one.path))
    ]
    for one in kept:
        if is_below(base, one.path):
            what = "asks before" if one.is_asked else "refuses that"
            names = ", ".join(sorted(one.tools.intersection(tools)))
            problem = f"not permitted: a rule of the session {what} {names} reads {str(one.path)!r}"
            raise ToolError(ErrorType.PERMISSION_DENIED, problem)
    return tuple(str(one.path) for one in kept if is_below(one.path, base))


def is_withheld(path: str, withheld: tuple[str, ...]) -> bool:
    """Say whether a path is one of those withheld, or lies in one."""
    return any(path == one or path.startswith(f"{one}/") for one in withheld)
