"""Plays a script: a generator that yields the calls of a turn and is sent their results.

Deterministic: the same script, inputs and results give the same turns, so a resumed run is played again from its
history up to where it stopped.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from soong.shared.agents.expressions import Names, as_list, evaluate, holds
from soong.shared.agents.script import Call, Finish, ForEach, Program, Set, Statement, Together, While
from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.plan.budget import MIB, Budget

MAX_CALLS_A_TURN = 200
MAX_SCRIPT_BYTES = 128 * MIB
MAX_SCRIPT_LOOKUPS = 20_000_000
"""Of all turns: a minute or two of CPU time, on a thread."""


def script_budget() -> Budget:
    """Return the budget of one playing, over all its turns."""
    return Budget("the values of the script", MAX_SCRIPT_BYTES, MAX_SCRIPT_LOOKUPS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that the script makes, by canonical name."""

    tool: str
    arguments: JsonObject


Turn: TypeAlias = Sequence[Wanted]
Results: TypeAlias = Sequence[Json]
"""One ``{is_error, error, value}`` for each call of the turn, in its order."""

Playing: TypeAlias = Generator[Turn, Results, bool]
"""Yields turns; its value says that the script has finished."""


class Player:
    """One playing of a program. ``output`` is set when the generator has ended."""

    def __init__(self, program: Program, inputs: Json, run_dirs: Json, budget: Budget | None = None) -> None:
        self._program = program
        self._names: Names = {"inputs": inputs, "workplace": run_dirs}
        self._budget = script_budget() if budget is None else budget
        self.output: Json = None

    def play(self) -> Playing:
        """Yield the calls of each turn.

        Raises:
            TemplateError: the script asks for what is not there.
            BudgetExceededError: it makes too much, or takes too long; counted over all its turns.
        """
        return (yield from self._body(self._program.statements))

    def _body(self, statements: Sequence[Statement]) -> Playing:
        for statement in statements:
            if statement.when is not True and not self._holds(statement.when):
                continue
            if (yield from self._one(statement)):
                return True
        return False

    def _one(self, statement: Statement) -> Playing:
        match statement:
            case Set(values):
                for name, value in values.items():
                    self._names[name] = self._value(value)
            case Finish(value):
                self.output = self._value(value)
                self._budget.spend(self._budget.size_of(self.output))  # stored and shown as it is
                return True
            case Call():
                yield from self._calls([statement])
            case Together(calls):
                yield from self._calls([one for one in calls if one.when is True or self._holds(one.when)])
            case ForEach():
                return (yield from self._for_each(statement))
            case While():
                return (yield from self._while(statement))
            case other:
                assert_never(other)
        return False

    def _value(self, value: Json) -> Json:
        return evaluate(value, self._names, self._budget)

    def _holds(self, condition: Json) -> bool:
        return holds(condition, self._names, self._budget)

    def _for_each(self, loop: ForEach) -> Playing:
        for item in as_list(self._value(loop.over), "for_each"):
            self._budget.step()
            self._names[loop.item_name] = item
            if (yield from self._body(loop.body)):
                return True
        return False

    def _while(self, loop: While) -> Playing:
        for _ in range(loop.limit):
            if not self._holds(loop.condition):
                break
            if (yield from self._body(loop.body)):
                return True
        return False

    def _calls(self, calls: Sequence[Call]) -> Generator[Turn, Results, None]:
        """Make the calls in as few turns as their number allows, and save what came of each."""
        wanted: list[tuple[Call, Json, Wanted]] = []
        for call in calls:
            items = [None] if call.over is None else as_list(self._value(call.over), "for_each")
            for item in items:
                if call.over is not None:
                    self._names[call.item_name] = item
                wanted.append((call, item, Wanted(call.tool, self._arguments(call))))
        results: list[Json] = []
        for start in range(0, len(wanted), MAX_CALLS_A_TURN):
            results += yield [one for _, _, one in wanted[start : start + MAX_CALLS_A_TURN]]
        self._save(calls, [(call, item) for call, item, _ in wanted], results)

    def _arguments(self, call: Call) -> JsonObject:
        arguments = self._value(call.arguments)
        self._budget.spend(self._budget.size_of(arguments))  # stored with the call
        if not isinstance(arguments, Mapping):
            raise TemplateError(call.tool, "its arguments are not an object")
        # An argument that came out as null is one that is not given: schemas have no null.
        return {name: value for name, value in arguments.items() if value is not None}

    def _save(self, calls: Sequence[Call], made: Sequence[tuple[Call, Json]], results: Sequence[Json]) -> None:
        by_call: dict[int, list[tuple[Json, Json]]] = {}
        for (call, item), result in zip(made, results, strict=True):
            by_call.setdefault(id(call), []).append((item, result))
        for call in calls:
            if not call.save:
                continue
            mine = by_call.get(id(call), [])
            if call.over is None:
                self._names[call.save] = mine[0][1]
            else:
                self._names[call.save] = [
                    {"item": item, **(result if isinstance(result, Mapping) else {})} for item, result in mine
                ]
