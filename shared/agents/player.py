"""Plays a script: a generator that yields the calls of a turn and is sent their results.

Deterministic: the same script, inputs and results give the same turns, so a resumed run is played again from its
history up to where it stopped.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from shared.agents.expressions import Names, as_list, evaluate, holds
from shared.agents.script import Call, Finish, ForEach, Program, Set, Statement, Together, While
from shared.errors import TemplateError
from shared.jsontext import Json, JsonObject

MAX_CALLS_A_TURN = 200


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

    def __init__(self, program: Program, inputs: Json, workplace: Json) -> None:
        self._program = program
        self._names: Names = {"inputs": inputs, "workplace": workplace}
        self.output: Json = None

    def play(self) -> Playing:
        """Yield the calls of each turn. Raises: TemplateError where the script asks for what is not there."""
        return (yield from self._body(self._program.statements))

    def _body(self, statements: Sequence[Statement]) -> Playing:
        for statement in statements:
            if statement.when is not True and not holds(statement.when, self._names):
                continue
            if (yield from self._one(statement)):
                return True
        return False

    def _one(self, statement: Statement) -> Playing:
        match statement:
            case Set(values):
                for name, value in values.items():
                    self._names[name] = evaluate(value, self._names)
            case Finish(value):
                self.output = evaluate(value, self._names)
                return True
            case Call():
                yield from self._calls([statement])
            case Together(calls):
                names = self._names
                yield from self._calls([one for one in calls if one.when is True or holds(one.when, names)])
            case ForEach():
                return (yield from self._for_each(statement))
            case While():
                return (yield from self._while(statement))
            case other:
                assert_never(other)
        return False

    def _for_each(self, loop: ForEach) -> Playing:
        for item in as_list(evaluate(loop.over, self._names), "for_each"):
            self._names[loop.item_name] = item
            if (yield from self._body(loop.body)):
                return True
        return False

    def _while(self, loop: While) -> Playing:
        for _ in range(loop.limit):
            if not holds(loop.condition, self._names):
                break
            if (yield from self._body(loop.body)):
                return True
        return False

    def _calls(self, calls: Sequence[Call]) -> Generator[Turn, Results, None]:
        """Make the calls in as few turns as their number allows, and save what came of each."""
        wanted: list[tuple[Call, Json, Wanted]] = []
        for call in calls:
            items = [None] if call.over is None else as_list(evaluate(call.over, self._names), "for_each")
            for item in items:
                if call.over is not None:
                    self._names[call.item_name] = item
                wanted.append((call, item, Wanted(call.tool, self._arguments(call))))
        results: list[Json] = []
        for start in range(0, len(wanted), MAX_CALLS_A_TURN):
            results += yield [one for _, _, one in wanted[start : start + MAX_CALLS_A_TURN]]
        self._save(calls, [(call, item) for call, item, _ in wanted], results)

    def _arguments(self, call: Call) -> JsonObject:
        arguments = evaluate(call.arguments, self._names)
        if not isinstance(arguments, Mapping):
            raise TemplateError(call.tool, "its arguments are not an object")
        # An argument that came out as null is one that is not given: schemas have no null.
        return {name: value for name, value in arguments.items() if value is not None}

    def _save(self, calls: Sequence[Call], made: Sequence[tuple[Call, Json]], results: Sequence[Json]) -> None:
        for call in calls:
            if not call.save:
                continue
            mine = [(item, result) for (one, item), result in zip(made, results, strict=True) if one is call]
            if call.over is None:
                self._names[call.save] = mine[0][1]
            else:
                self._names[call.save] = [
                    {"item": item, **(result if isinstance(result, Mapping) else {})} for item, result in mine
                ]
