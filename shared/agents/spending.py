"""Limits of one run in tokens and money (DIS-07), compared with what it has used before each model request.

The request that reaches a limit is the last: a run overspends by one answer at most. A limit of 0 allows no request.
"""

from decimal import Decimal
from typing import Final

from soong.shared.agents.definition import AgentLimits
from soong.shared.engine.runs.budgets import WARN_AT
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.runs.status import EndReason

NEARLY_SPENT: Final = "What this session or task may use is nearly used up. Finish soon: report what you have."


def limit_reached(used: Usage, limits: AgentLimits, model: str) -> tuple[EndReason, str] | None:
    """Return how a run ends that has used this much, and why in words; None: it may ask its model again.

    A limit in money ends a run whose model has no known price: unknown is not zero.
    """
    tokens = used.input_tokens + used.output_tokens
    if limits.tokens is not None and tokens >= limits.tokens:
        return EndReason.TOKEN_LIMIT, f"the run has used {tokens} of its {limits.tokens} tokens"
    if limits.cost_usd is None:
        return None
    if used.cost_usd is None:
        words = f"no price is known for the model {model!r}, so its limit of {limits.cost_usd} USD cannot be kept"
        return EndReason.COST_LIMIT, words
    if used.cost_usd >= Decimal(str(limits.cost_usd)):
        return EndReason.COST_LIMIT, f"the run has used {used.cost_usd} of its {limits.cost_usd} USD"
    return None


def warning(before: Usage, used: Usage, limits: AgentLimits) -> str:
    """Return the note for an agent whose answer took it past 80 % of a limit; empty otherwise."""
    if limits.tokens is None and limits.cost_usd is None:
        return ""
    if _share(before, limits) < WARN_AT <= _share(used, limits):
        return f"You have used {WARN_AT:.0%} of what this run may use. Finish soon: report what you have."
    return ""


def _share(used: Usage, limits: AgentLimits) -> float:
    """Return the part of the nearest limit that is used; 0 without limits."""
    shares = [0.0]
    if limits.tokens:
        shares.append((used.input_tokens + used.output_tokens) / limits.tokens)
    if limits.cost_usd and used.cost_usd is not None:
        shares.append(float(used.cost_usd) / limits.cost_usd)
    return max(shares)
