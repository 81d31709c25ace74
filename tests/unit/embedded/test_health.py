"""What a service says of the workers that it keeps, for people."""

import pytest

from soong.orchestrator.embedded.child import ChildHealth
from soong.shared.core import timing


@pytest.mark.parametrize(
    ("child", "is_dying", "words"),
    [
        (
            ChildHealth("worker-1", 1, 1, "exit code 7", 4),
            False,
            "worker-1 ended unexpectedly once, last by exit code 7; it runs since 4 s",
        ),
        (
            ChildHealth("worker-2", 5, 3, "exit code 7"),
            True,
            "worker-2 ended unexpectedly 5 times, 3 of them in a row, last by exit code 7",
        ),
        (
            ChildHealth("worker-1", 3, 3, "exit code 7", int(timing.STEADY_AFTER_S)),
            False,
            "worker-1 ended unexpectedly 3 times, last by exit code 7; it runs since 30 s",
        ),
    ],
    ids=["once", "again and again", "steady since"],
)
def test_a_worker_is_dying_until_it_has_proved_itself(child: ChildHealth, is_dying: bool, words: str) -> None:
    assert (child.is_dying, child.words) == (is_dying, words)
