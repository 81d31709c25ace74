"""The words for steps that were asked to end and whose functions still run: ``1 function still running``."""

from collections.abc import Sequence

from soong.shared.engine.tasks.step import Step


def still_running(steps: Sequence[Step]) -> str:
    """Return how many of the steps are leased, in words; empty when none is."""
    left = [step for step in steps if step.status.is_leased]
    if not left:
        return ""
    nouns = {step.kind.traits.noun for step in left}
    noun = nouns.pop() if len(nouns) == 1 else "step"
    return f"{len(left)} {noun}{'s' if len(left) > 1 else ''} still running"
