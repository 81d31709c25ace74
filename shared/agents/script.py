"""The script language: what a step does when no model is configured, written in the plan as data.

Owns the statements and the check of their form. A script is a list of statements, played from the top::

    - call: code.search                 # one tool call, one turn
      with: {query: TODO, path: "${inputs.path}"}
      save: hits                        # {is_error, error, value}
    - for_each: ${files}                # with `call`: all calls in one turn; `save` is a list, each with its `item`
      as: file
      call: code.read_file
      with: {path: "${file.path}"}
      save: pages
    - together: [{call: …}, {call: …}]  # several calls in one turn
    - set: {names: {$map: "${hits.value.matches}", as: hit, to: "${hit.path}"}}
    - while: {not: {empty: "${pending}"}}
      limit: 20                         # rounds at most
      do: […]
    - for_each: ${packages}             # with `do`: one after another
      do: […]
    - finish: {findings: "${findings}"} # the step's output; without it the output is null

Every statement may have ``when:`` with a condition. Values are expressions (:mod:`soong.shared.agents.expressions`);
``inputs`` are the step's inputs and ``run_dirs`` its folders. A script sees no more than a model does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from soong.shared.agents.expressions import CONDITIONS, OPERATIONS
from soong.shared.core.errors import InvalidPatternError, TemplateError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.patterns import check_pattern
from soong.shared.engine.tasks.paths import Path
from soong.shared.engine.tasks.plan.fields import Fields, kind_of
from soong.shared.engine.tasks.plan.plan import Report
from soong.shared.engine.tasks.plan.template import parse_template
from soong.shared.engine.tasks.problems import JoinedNames, Problems, Unknown, listed

DEFAULT_ROUNDS = 100
MAX_ROUNDS = 10_000
ROOTS = frozenset({"inputs", "workplace"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call, or one for each item of ``over``, all in one turn."""

    tool: str
    arguments: JsonObject
    save: str = ""
    over: Json = None
    item_name: str = "item"
    when: Json = True


@dataclass(frozen=True, slots=True)
class Together:
    calls: tuple[Call, ...]
    when: Json = True


@dataclass(frozen=True, slots=True)
class Set:
    """Assignments in order: a later one sees the earlier ones."""

    values: JsonObject
    when: Json = True


@dataclass(frozen=True, slots=True)
class ForEach:
    over: Json
    item_name: str
    body: "tuple[Statement, ...]"
    when: Json = True


@dataclass(frozen=True, slots=True)
class While:
    condition: Json
    body: "tuple[Statement, ...]"
    limit: int = DEFAULT_ROUNDS
    when: Json = True


@dataclass(frozen=True, slots=True)
class Finish:
    value: Json
    when: Json = True


Statement: TypeAlias = Call | Together | Set | ForEach | While | Finish


@dataclass(frozen=True, slots=True)
class Program:
    statements: tuple[Statement, ...]


def parse_script(script: Sequence[Json]) -> Program:
    """Return the program of a script. Raises: InvalidPlanError."""
    problems = Problems("script", joint="")
    program = Program(_Reader(problems.report).body(script, ()))
    problems.refuse()
    return program


def check_script(script: Json, input_names: frozenset[str], tools: frozenset[str] | None, report: Report) -> None:
    """Report every problem of a script: its form, unknown tools, and references to names that nothing sets.

    ``tools`` are the tools that exist; None: they are not known here.
    """
    reader = _Reader(report, tools=tools)
    reader.body(script, ())
    reader.check_names(input_names)


@dataclass(slots=True)
class _Reader:
    """Reads statements; collects the names that are set, and the expressions to check once all are known."""

    report: Report
    names: set[str] = field(default_factory=lambda: set(ROOTS))
    seen: list[tuple[Path, Json]] = field(default_factory=list)
    conditions: list[tuple[Path, Json]] = field(default_factory=list)
    tools: frozenset[str] | None = None

    def tool(self, fields: Fields) -> str:
        """Read the name of a call's tool; one that a reference makes is known only when the script runs."""
        name = fields.text("call", is_required=True)
        if name and "${" not in name and self.tools is not None and name not in self.tools:
            self.report((*fields.path, "call"), f"there is no tool {name!r}", Unknown(name, self.tools))
        return name

    def body(self, value: Json, path: Path) -> tuple[Statement, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            self.report(path, f"a script is {kind_of(value)}", "write a list of statements")
            return ()
        read = (self._statement(item, (*path, index)) for index, item in enumerate(value))
        return tuple(statement for statement in read if statement is not None)

    def _statement(self, value: Json, path: Path) -> Statement | None:
        if not isinstance(value, Mapping):
            self.report(path, f"a statement is {kind_of(value)}", f"write a mapping with one of {', '.join(_FORMS)}")
            return None
        verb = next((verb for verb in _FORMS if verb in value), "")
        if not verb:
            remedy = f"a statement has one of {', '.join(_FORMS)}"
            self.report(path, f"none of its fields says what to do ({listed(value)})", remedy)
            return None
        fields = Fields(value, path, self.report)
        statement = _FORMS[verb](self, fields)
        fields.done()
        return statement

    def expression(self, fields: Fields, name: str) -> Json:
        value = fields.anything(name)
        if value is not None:
            self.seen.append(((*fields.path, name), value))
        return value

    def condition(self, fields: Fields, name: str) -> Json:
        value = fields.anything(name)
        if value is not None:
            self.conditions.append(((*fields.path, name), value))
        return value

    def when(self, fields: Fields) -> Json:
        value = self.condition(fields, "when")
        return True if value is None else value

    def set_name(self, name: str) -> str:
        self.names.add(name)
        return name

    def check_names(self, input_names: frozenset[str]) -> None:
        """Check the expressions: operations, their parameters, and the roots of references."""
        check = _ExpressionCheck(input_names, self.report)
        for path, value in self.seen:
            check.expression(value, path, JoinedNames(self.names))
        for path, value in self.conditions:
            check.condition(value, path, JoinedNames(self.names))


def _read_call(reader: _Reader, fields: Fields) -> Call:
    arguments = reader.expression(fields, "with")
    if arguments is not None and not isinstance(arguments, Mapping):
        reader.report((*fields.path, "with"), f"the arguments are {kind_of(arguments)}", "write a mapping")
        arguments = None
    save, item_name = fields.text("save"), fields.text("as", "item")
    over = reader.expression(fields, "for_each")
    return Call(
        tool=reader.tool(fields),
        arguments=arguments or {},
        save=reader.set_name(save) if save else "",
        over=over,
        item_name=item_name if over is None else reader.set_name(item_name),  # a call without items sets none
        when=reader.when(fields),
    )


def _read_together(reader: _Reader, fields: Fields) -> Together:
    calls = reader.body(fields.items("together") or (), (*fields.path, "together"))
    if not all(isinstance(one, Call) for one in calls):
        reader.report((*fields.path, "together"), "something else than a call stands in it", "write `call:` statements")
    return Together(tuple(one for one in calls if isinstance(one, Call)), reader.when(fields))


def _read_set(reader: _Reader, fields: Fields) -> Set:
    values = fields.mapping("set") or {}
    for name, value in values.items():
        if name in ROOTS:
            reader.report((*fields.path, "set", name), f"{name!r} cannot be set", "choose another name")
        reader.set_name(name)
        reader.seen.append(((*fields.path, "set", name), value))
    return Set(values, reader.when(fields))


def _read_for_each(reader: _Reader, fields: Fields) -> ForEach:
    over = reader.expression(fields, "for_each")
    item_name = reader.set_name(fields.text("as", "item"))
    body = reader.body(fields.items("do", is_required=True) or (), (*fields.path, "do"))
    return ForEach(over, item_name, body, reader.when(fields))


def _read_while(reader: _Reader, fields: Fields) -> While:
    condition = reader.condition(fields, "while")
    body = reader.body(fields.items("do", is_required=True) or (), (*fields.path, "do"))
    return While(condition, body, fields.integer("limit", DEFAULT_ROUNDS, 1, MAX_ROUNDS), reader.when(fields))


def _read_finish(reader: _Reader, fields: Fields) -> Finish:
    return Finish(reader.expression(fields, "finish"), reader.when(fields))


_FORMS: Mapping[str, Callable[[_Reader, Fields], Statement]] = {
    # Looked for in this order: a call with `for_each` is a call.
    "call": _read_call,
    "together": _read_together,
    "set": _read_set,
    "for_each": _read_for_each,
    "while": _read_while,
    "finish": _read_finish,
}


_CONDITIONS: Mapping[str, str] = {"$if": "$if", "$filter": "where", "$count": "where"}
"""The parameter of an operation that is a condition."""


@dataclass(slots=True)
class _ExpressionCheck:
    """Walks expressions with the names known where they stand."""

    input_names: frozenset[str]
    report: Report

    def expression(self, value: Json, path: Path, names: JoinedNames) -> None:
        if isinstance(value, str):
            self._text(value, path, names)
        elif isinstance(value, Mapping):
            first = next(iter(value), "")
            if first.startswith("$"):
                names = self._operation(first, value, path, names)
            conditions = _CONDITIONS.get(first, "")
            for key, item in value.items():
                if key == conditions:
                    self.condition(item, (*path, key), names)
                elif not (first.startswith("$") and key in ("as", "get")):
                    self.expression(item, (*path, key), names)
        elif isinstance(value, Sequence):
            for index, item in enumerate(value):
                self.expression(item, (*path, index), names)

    def condition(self, value: Json, path: Path, names: JoinedNames) -> None:
        """Check a condition: its comparisons, and a regular expression that stands in it as it is."""
        name, operand = next(iter(value.items()), ("", None)) if isinstance(value, Mapping) else ("", None)
        if not isinstance(value, Mapping) or len(value) != 1 or name.startswith("$"):
            self.expression(value, path, names)
        elif name not in CONDITIONS:
            remedy = Unknown(name, CONDITIONS)
            self.report(path, f"there is no comparison {name!r}", remedy)
        elif name == "not":
            self.condition(operand, (*path, name), names)
        elif name in ("all", "any") and isinstance(operand, list | tuple):
            for index, item in enumerate(operand):
                self.condition(item, (*path, name, index), names)
        else:
            self.expression(operand, (*path, name), names)
            if name == "matches":
                self._pattern(operand, (*path, name))

    def _pattern(self, operand: Json, path: Path) -> None:
        pattern = operand[1] if isinstance(operand, list | tuple) and len(operand) == 2 else None
        if not isinstance(pattern, str) or "${" in pattern:
            return
        try:
            check_pattern(pattern)
        except InvalidPatternError as error:
            shown = pattern if len(pattern) <= 80 else f"{pattern[:80]}…"
            self.report((*path, 1), f"{shown!r} cannot be used: {error}", "write a pattern in RE2's syntax")

    def _operation(self, name: str, value: JsonObject, path: Path, names: JoinedNames) -> JoinedNames:
        operation = OPERATIONS.get(name)
        if operation is None:
            self.report(path, f"there is no operation {name!r}", f"there are: {', '.join(OPERATIONS)}")
            return names
        for missing in [need for need in operation.needs if need not in value]:
            self.report(path, f"{name} lacks {missing!r}", f"add `{missing}:`")
        for extra in value:
            if extra not in (name, *operation.needs, *operation.takes):
                self.report(path, f"{name} does not take {extra!r}", "remove it")
        return JoinedNames(names, frozenset({str(value.get("as", "item"))})) if operation.binds else names

    def _text(self, value: str, path: Path, names: JoinedNames) -> None:
        if "${" not in value:
            return
        try:
            pieces = parse_template(value)
        except TemplateError as error:
            self.report(path, f"the reference '${{{error.reference}}}' is malformed", error.problem)
            return
        for piece in pieces:
            if isinstance(piece, str):
                continue
            root = piece.root_in(names)
            if root is None:
                problem = f"the reference '${{{piece.text}}}' names what nothing sets"
                self.report(path, problem, Unknown(str(piece.parts[0]), names))
            elif root == "inputs" and len(piece.parts) > 1 and piece.parts[1] not in self.input_names:
                problem = f"the step has no input {piece.parts[1]!r}"
                self.report(path, problem, Unknown(str(piece.parts[1]), self.input_names))
