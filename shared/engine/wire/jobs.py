"""What crosses Celery: one task name, one small payload, the queues. Written nowhere else.

A message is a hint: "look at the rows now". It holds no secret and names no step; losing or doubling it does no harm.
"""

from typing import Final

PROTOCOL: Final = 1
"""Version of everything under soong.shared.engine.wire and of a step's row; N reads N-1.

A step needs the version that it was written in, a worker announces those that it reads: as ``protocol:<n>``.
"""

DISPATCH_TASK: Final = "soong.worker"
"""The one Celery task: hold a slot and claim steps until nothing is claimable. Arguments: (dispatch_id,)."""

KEY_PREFIX: Final = "soong:"
"""Before every broker key, so that one Redis may serve others too (kombu ``global_keyprefix``)."""


def written_in(protocol: int = PROTOCOL) -> str:
    """Return the capability that a worker needs for what a program of this version wrote."""
    return f"protocol:{protocol}"


def reads(protocol: int = PROTOCOL) -> tuple[str, ...]:
    """Return the capabilities of a worker of this version: its own writing, and that of the version before."""
    return tuple(written_in(version) for version in range(max(1, protocol - 1), protocol + 1))


def queue_of(pool: str) -> str:
    """Return the Celery queue of a pool."""
    return f"soong.{pool}"


def queue_key(pool: str) -> str:
    """Return the Redis list in which kombu keeps that queue."""
    return f"{KEY_PREFIX}{queue_of(pool)}"
