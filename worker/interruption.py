"""How a held run is being stopped, as everything that works for it sees it.

A cancelled run ends, and its calls with it. One that is handed back or dropped goes on elsewhere: its unfinished calls
have no result, and its open question stays open, for whoever takes the run up asks the same one.
"""

from dataclasses import dataclass
from typing import Literal

Stop = Literal["cancel", "hand_back", "drop"]


@dataclass(slots=True)
class Interruption:
    """Set once, by the slot that holds the run, before its task is cancelled."""

    stop: Stop | None = None
    reason: str = ""

    @property
    def goes_on_elsewhere(self) -> bool:
        return self.stop in ("hand_back", "drop")
