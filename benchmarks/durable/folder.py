"""What the agents of all peers do: list a folder as often as they are asked to, one call after another.

The request is the number of calls. The last answer is the number of listings that the agent has received.
"""

import os
from collections.abc import Callable


def lister(folder: str) -> Callable[[str], list[str]]:
    """Return the tool of the agents that look into ``folder``."""

    def list_dir(path: str) -> list[str]:
        """List a directory."""
        with os.scandir(f"{folder}/{path}") as found:
            return sorted(entry.name for entry in found)

    return list_dir


def listings(answer: str, calls: int) -> int:
    """Return the number of listings that an agent reports, which is ``calls``."""
    if answer != str(calls):
        raise ValueError(f"an agent of {calls} calls answered {answer!r}")
    return calls
