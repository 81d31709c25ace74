"""A model that makes the same failing call again and again is warned, and then its run is ended (DIS-07).

The same call is the same tool with the same arguments that ends in the same error. Turns are counted in which it was
made, one after another: a turn without it resets the count, and so does a call that succeeds. Such a loop costs all
history once a turn, and no turn of it can end in anything else.

So is one that asks for the same tool again after denials, whatever the arguments: each such call may bother a person.
Turns are counted in which calls of the tool were denied, until one is permitted.
"""

import json
from collections.abc import Iterable, Sequence
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
    _denied: dict[str, int] = field(default_factory=dict)
    """In how many turns calls of a tool were denied and none was permitted."""
    _denied_now: frozenset[str] = frozenset()

    def take(self, calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
        """Take the calls of one turn with their results, in the same order."""
        failed: dict[_Key, str] = {}
        made = list(zip(calls, results, strict=True))
        self._take_denials([(call.tool, result) for call, result in made])
        for call, result in made:
            if result.error is not None:
                key = (call.tool, _text(call.arguments), str(result.error.type), result.error.message)
                failed[key] = f"{call.tool} failed with {result.error.type}: {result.error.message[:MAX_SHOWN_CHARS]}"
        self._turns = {key: self._turns.get(key, 0) + 1 for key in failed}
        self._shown = failed

    def restore(self, turns: Iterable[Sequence[tuple[str, ToolResult]]]) -> None:
        """Count the denials of turns that the run had before this process took it up: tools with their results."""
        for turn in turns:
            self._take_denials(turn)

    def _take_denials(self, made: Sequence[tuple[str, ToolResult]]) -> None:
        denied = {tool for tool, result in made if result.error is not None and result.error.type.is_denial}
        permitted = {tool for tool, result in made if result.error is None}
        for tool in permitted:
            self._denied.pop(tool, None)
        self._denied_now = frozenset(denied - permitted)
        for tool in self._denied_now:
            self._denied[tool] = self._denied.get(tool, 0) + 1

    @property
    def warning(self) -> str:
        """What to tell the model now; empty while there is nothing."""
        return "\n".join(filter(None, (self._failure_warning(), self._denial_warning())))

    def _denial_warning(self) -> str:
        told = [tool for tool in sorted(self._denied_now) if self._denied[tool] >= TOLD_AFTER]
        if not told:
            return ""
        return (
            f"Calls of {', '.join(told)} were denied again and again. Do not ask for more of them, not with other "
            "arguments either: finish with what you have, and say what was denied."
        )

    def _failure_warning(self) -> str:
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
        return next((self._words(tool) for tool in sorted(self._denied_now) if self._is_over(tool)), "")

    def _is_over(self, tool: str) -> bool:
        return 0 < self.limit <= self._denied[tool]

    def _words(self, tool: str) -> str:
        return f"calls of {tool} were denied in {self._denied[tool]} turns, and the agent asked for more"


def _text(arguments: object) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)[:MAX_SHOWN_CHARS]
