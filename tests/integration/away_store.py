"""A database that does not answer for a while."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from soong.shared.core.errors import UnavailableError
from tests.model.memory import MemoryStore


async def _refuse(*_given: object, **_named: object) -> None:
    raise UnavailableError("the database does not answer")


class AwayStore(MemoryStore):
    """Does not answer the next ``away`` calls of those that it has ``names`` of; ``refused`` counts them."""

    names: Collection[str] = ()
    away: float = 0

    def __init__(self, *names: str, away: float = 0) -> None:
        super().__init__()
        self.refused: Counter[str] = Counter()
        self.names, self.away = names, away

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in super().__getattribute__("names") and self.away:
            self.away -= 1
            self.refused[name] += 1
            return _refuse
        return found
