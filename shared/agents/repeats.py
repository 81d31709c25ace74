"""A model that makes the same failing call again and again is warned, and then its run is ended (DIS-07).

The same call is the same tool with the same arguments that ends in the same error. Turns are counted in which it was
made, one after another: a turn without it resets the count, and so does a call that succeeds. Such a loop costs all
history once a turn, and no turn of it can end in anything else.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ToolResult

TOLD_AFTER: Final = 3
MAX_SHOWN_CHARS: Final = 300

_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class RepeatedFailures:
    """Counts for one run. ``limit`` is how many turns in a row end it; 0: none does."""

    limit: int
    _turns: dict[_Key, int] = field(default_factory=dict)
    _shown: dict[_Key, str] = field(default_factory=dict)

    def take(self, calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
        """Take the calls of one turn with their results, in the same order."""
        failed: dict[_Key, str] = {}
        for call, result in zip(calls, results, strict=True):
            if result.error is not None:
                key = (call.tool, _text(call.arguments), str(result.error.type), result.error.message)
                failed[key] = f"{call.tool} failed with {result.error.type}: {result.error.message[:MAX_SHOWN_CHARS]}"
        self._turns = {key: self._turns.get(key, 0) + 1 for key in failed}
        self._shown = failed

    @property
    def warning(self) -> str:
        """What to tell the model now; empty while there is nothing."""
        told = [f"{self._shown[key]} ({turns} times)" for key, turns in self._turns.items() if turns >= TOLD_AFTER]
        if not told:
            return ""
        return (
            "You repeat a call that fails in the same way each time, with the same arguments: "
            + "; ".join(told)
            + ". It will not succeed. Change the arguments, use another tool, or finish with what you have."
        )

    @property
    def end(self) -> str:
        """Why the run ends now; empty while it continues."""
        for key, turns in self._turns.items():
            if self.limit and turns >= self.limit:
                return f"the same call failed {turns} turns in a row: {self._shown[key]}"
        return ""


def _text(arguments: object) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)[:MAX_SHOWN_CHARS]
