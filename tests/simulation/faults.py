"""Which faults there are, how likely each is in one run, and how often it struck.

Each seed draws its own selection: a run with few kinds of faults goes deeper into each than one with all of them.
"""

from collections import Counter
from enum import StrEnum
from random import Random
from typing import Final


class Fault(StrEnum):
    # at the border of a transaction
    UNAVAILABLE = "store: not reached"
    SLOW = "store: slow"
    CRASH_BEFORE = "crash before commit"
    CRASH_AFTER = "crash after commit"
    PAUSE_AFTER = "pause after commit"
    APPLIED_BUT_ERROR = "applied but reported as error"
    # on the way of a message
    CRASH_AT_PUBLISH = "crash at publish"
    HINT_LOST = "notification lost"
    HINT_DOUBLED = "notification duplicated"
    HINT_DELAYED = "notification delayed"
    MESSAGE_LOST = "message lost"
    MESSAGE_DOUBLED = "message duplicated"
    MESSAGE_DELAYED = "message delayed"
    BROKER_AWAY = "broker not reached"
    # from outside
    DATABASE_DOWN = "database down"
    REDIS_DOWN = "redis down"
    REDIS_EMPTY = "redis back empty"
    WORKER_KILLED = "worker killed"
    WORKER_PAUSED = "worker paused"
    WORKER_STALLED = "worker loop stalled"
    HEARTBEAT_HUNG = "worker beat hangs"
    WORKER_STOPPED = "worker asked to stop"
    OWNER_KILLED = "owner killed"
    OWNER_PAUSED = "owner paused"
    OWNER_STOPPED = "owner asked to stop"
    CLOCK_JUMPED = "wall clock jumped"


_AT_BORDERS: Final = {
    Fault.UNAVAILABLE: 0.05,
    Fault.SLOW: 0.05,
    Fault.CRASH_BEFORE: 0.01,
    Fault.CRASH_AFTER: 0.015,
    Fault.PAUSE_AFTER: 0.01,
    Fault.APPLIED_BUT_ERROR: 0.1,
    Fault.CRASH_AT_PUBLISH: 0.02,
    Fault.HINT_LOST: 0.3,
    Fault.HINT_DOUBLED: 0.2,
    Fault.HINT_DELAYED: 0.3,
    Fault.MESSAGE_LOST: 0.2,
    Fault.MESSAGE_DOUBLED: 0.2,
    Fault.MESSAGE_DELAYED: 0.3,
    Fault.BROKER_AWAY: 0.05,
}
"""The highest chance of each fault at each border that it can strike at."""

FROM_OUTSIDE: Final = tuple(fault for fault in Fault if fault not in _AT_BORDERS)


class Dice:
    """Says whether a fault strikes. After :meth:`calm` none does any more."""

    def __init__(self, random: Random) -> None:
        self.random = random
        share = random.choice((0.15, 0.4, 0.7))
        self._risks = {
            fault: highest * random.random() for fault, highest in _AT_BORDERS.items() if random.random() < share
        }
        self.outside = [fault for fault in FROM_OUTSIDE if random.random() < share]
        self.struck: Counter[Fault] = Counter()
        self.is_calm = False

    def strikes(self, fault: Fault, share: float = 1.0) -> bool:
        """Say whether a fault strikes here; ``share`` is the part of its usual chance that it has here."""
        risk = self._risks.get(fault)
        if risk is None or self.is_calm or self.random.random() >= risk * share:
            return False
        self.struck[fault] += 1
        return True

    def calm(self) -> None:
        self.is_calm = True
