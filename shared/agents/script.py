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

Every statement may have ``when:`` with a condition. Values are expressions (:mod:`shared.agents.expressions`);
``inputs`` are the step's inputs and ``workplace`` its folders. A script sees no more than a model does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from shared.agents.expressions import OPERATIONS
from shared.errors import InvalidPlanError, Offence, TemplateError
from shared.jsontext import Json, JsonObject
from shared.tasks.fields import Fields, kind_of
from shared.tasks.functions import suggestion
from shared.tasks.places import Path, show
from shared.tasks.template import parse_template

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
    """Return the program of a script. Raises: InvalidPlanError with every offence."""
    reader = _Reader()
    program = Program(reader.body(script, ()))
    if reader.offences:
        raise InvalidPlanError([Offence(f"script{show(path)}", *words) for path, *words in reader.offences])
    return program


def check_script(
    script: Json, input_names: frozenset[str], tools: frozenset[str] | None = None
) -> Sequence[tuple[Path, str, str]]:
    """Return every problem of a script: its form, unknown tools, and references to names that nothing sets.

    ``tools`` are the tools that exist; None: they are not known here.
    """
    reader = _Reader(tools=tools)
    reader.body(script, ())
    return [*reader.offences, *reader.unknown_names(input_names)]


@dataclass(slots=True)
class _Reader:
    """Reads statements; collects offences, the names that are set, and the expressions to check once all are known."""

    offences: list[tuple[Path, str, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=lambda: set(ROOTS))
    seen: list[tuple[Path, Json]] = field(default_factory=list)
    tools: frozenset[str] | None = None

    def tool(self, fields: Fields) -> str:
        """Read the name of a call's tool; one that a reference makes is known only when the script runs."""
        name = fields.text("call", is_required=True)
        if name and "${" not in name and self.tools is not None and name not in self.tools:
            self.report((*fields.path, "call"), f"there is no tool {name!r}", suggestion(name, self.tools))
        return name

    def report(self, path: Path, problem: str, remedy: str) -> None:
        self.offences.append((path, problem, remedy))

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
            self.report(path, f"none of its fields says what to do ({', '.join(value) or 'it has none'})", remedy)
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

    def when(self, fields: Fields) -> Json:
        value = self.expression(fields, "when")
        return True if value is None else value

    def set_name(self, name: str) -> str:
        self.names.add(name)
        return name

    def unknown_names(self, input_names: frozenset[str]) -> list[tuple[Path, str, str]]:
        """Check the expressions: operations, their parameters, and the roots of references."""
        check = _ExpressionCheck(frozenset(self.names), input_names, [])
        for path, value in self.seen:
            check.expression(value, path, check.names)
        return check.offences


def _read_call(reader: _Reader, fields: Fields) -> Call:
    arguments = reader.expression(fields, "with")
    if arguments is not None and not isinstance(arguments, Mapping):
        reader.report((*fields.path, "with"), f"the arguments are {kind_of(arguments)}", "write a mapping")
        arguments = None
    save = fields.text("save")
    return Call(
        tool=reader.tool(fields),
        arguments=arguments or {},
        save=reader.set_name(save) if save else "",
        over=reader.expression(fields, "for_each"),
        item_name=reader.set_name(fields.text("as", "item")),
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
    condition = reader.expression(fields, "while")
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


@dataclass(slots=True)
class _ExpressionCheck:
    """Walks expressions with the names known where they stand."""

    names: frozenset[str]
    input_names: frozenset[str]
    offences: list[tuple[Path, str, str]]

    def expression(self, value: Json, path: Path, names: frozenset[str]) -> None:
        if isinstance(value, str):
            self._text(value, path, names)
        elif isinstance(value, Mapping):
            first = next(iter(value), "")
            if first.startswith("$"):
                names = self._operation(first, value, path, names)
            for key, item in value.items():
                if not (first.startswith("$") and key in ("as", "get")):
                    self.expression(item, (*path, key), names)
        elif isinstance(value, Sequence):
            for index, item in enumerate(value):
                self.expression(item, (*path, index), names)

    def _operation(self, name: str, value: JsonObject, path: Path, names: frozenset[str]) -> frozenset[str]:
        operation = OPERATIONS.get(name)
        if operation is None:
            self.offences.append((path, f"there is no operation {name!r}", f"there are: {', '.join(OPERATIONS)}"))
            return names
        for missing in [need for need in operation.needs if need not in value]:
            self.offences.append((path, f"{name} lacks {missing!r}", f"add `{missing}:`"))
        for extra in set(value) - {name, *operation.needs, *operation.takes}:
            self.offences.append((path, f"{name} does not take {extra!r}", "remove it"))
        return names | {str(value.get("as", "item"))} if operation.binds else names

    def _text(self, value: str, path: Path, names: frozenset[str]) -> None:
        if "${" not in value:
            return
        try:
            pieces = parse_template(value)
        except TemplateError as error:
            self.offences.append((path, f"the reference '${{{error.reference}}}' is malformed", error.problem))
            return
        for piece in pieces:
            if isinstance(piece, str):
                continue
            root = piece.root_in(names)
            if root is None:
                remedy = f"known: {', '.join(sorted(names))}"
                self.offences.append((path, f"the reference '${{{piece.text}}}' names what nothing sets", remedy))
            elif root == "inputs" and len(piece.parts) > 1 and piece.parts[1] not in self.input_names:
                remedy = f"the step's inputs are: {', '.join(sorted(self.input_names)) or 'none'}"
                self.offences.append((path, f"the step has no input {piece.parts[1]!r}", remedy))
