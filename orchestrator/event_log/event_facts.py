"""Reading the facts of an event. Workers write events: nothing of one is taken for what it should be."""

from decimal import Decimal, InvalidOperation
from typing import Final

from soong.shared.core.inert import inert
from soong.shared.core.jsontext import JsonObject

MAX_WORD: Final = 200
MAX_COUNT: Final = 2**53 - 1
MICRO: Final = 1_000_000


def word(data: JsonObject, name: str, limit: int = MAX_WORD) -> str:
    """Return a text as one that shows what it holds, cut; empty where there is none."""
    value = data.get(name)
    return inert(value[:limit]) if isinstance(value, str) else ""


def count(data: JsonObject, name: str) -> int:
    """Return a number that counts something; 0 where there is none."""
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else 0


def microusd(data: JsonObject, name: str = "cost_usd") -> int | None:
    """Return an amount of money in millionths; None where it is not known."""
    value = data.get(name)
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        return None
    return int(amount * MICRO) if amount.is_finite() and 0 <= amount <= MICRO * MICRO else None


def provider_of(model: str) -> str:
    """Return the provider of a model's name, such as ``anthropic`` of ``anthropic:claude``."""
    return model.partition(":")[0] if ":" in model else ""
