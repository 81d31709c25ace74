"""The limit of open files of a process that serves, and of those that it starts (RLIMIT_NOFILE)."""

import resource
from typing import Final

from soong.shared.core.errors import UsageError

WANTED: Final = 8_192
NEEDED: Final = 256
"""The open files of one process: connections, log files, pipes and sockets of its tools."""
PER_WORKER: Final = 16
"""Connections of one worker to the Redis that a service starts, which inherits the limit."""


def raise_open_files(workers: int = 0) -> None:
    """Raise the limit as far as it may be raised and is useful.
    Raises: UsageError, fewer files may be open than a service with so many workers needs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    needed = NEEDED + workers * PER_WORKER
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise UsageError(
            f"{soft} files may be open at once (RLIMIT_NOFILE), {needed} are needed; run `ulimit -n {needed}`"
        )
