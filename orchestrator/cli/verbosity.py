"""How much the command line prints in addition to its result: one option, anywhere on the command line."""

from enum import StrEnum


class Verbosity(StrEnum):
    """QUIET prints results and errors only; VERBOSE logs more and shows tracebacks."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_chosen = [Verbosity.NORMAL]


def choose(verbosity: Verbosity) -> None:
    """Set the verbosity of this process."""
    _chosen[0] = verbosity


def chosen() -> Verbosity:
    """Return the verbosity of this process."""
    return _chosen[0]
