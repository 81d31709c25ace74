"""How much the command line says beside its result: chosen once, by an option at any place of the command line."""

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
