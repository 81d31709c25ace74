"""The total of children that one run may make (DIS-03): what grows without end is ended by a number.

The children of the run that owns a task are its steps: map steps and their items, and what is added later; not their
attempts. Unlike the concurrency limits, which let steps wait, a total refuses.
"""

from typing import Final

from soong.shared.core.errors import LimitExceededError

SETTING: Final = "SOONG_MAX_CHILDREN_PER_RUN"


def check_total(standing: int, added: int, limit: int) -> None:
    """Raises: LimitExceededError when the run would have more than ``limit`` children; 0 means unlimited."""
    if limit and added and standing + added > limit:
        raise LimitExceededError(f"the run would have {standing + added} children, and {SETTING} is {limit}")
