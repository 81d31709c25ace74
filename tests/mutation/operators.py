"""Small violations of a module: each changes one place of its text, and the text still compiles.

Nothing here is random: the same text gives the same mutants in the same order. What is no behaviour is left alone:
annotations, docstrings, log lines, messages of errors.
"""

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_OPERATORS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_SILENT = re.compile(r"(log|logger|structlog)\.")
_WORDS_FOR_PEOPLE = frozenset({"description", "help", "hint", "summary", "title"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed text of a module. ``line`` is where; ``what`` names the operator."""

    path: str
    line: int
    what: str
    text: str

    def diff(self, original: str) -> str:
        """Return the changed lines as a unified diff without context."""
        lines = difflib.unified_diff(original.splitlines(), self.text.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


_Placed: TypeAlias = ast.expr | ast.stmt | ast.keyword


@dataclass(frozen=True, slots=True)
class _Change:
    """Bytes to be replaced: from, to, and by what."""

    start: int
    end: int
    by: str
    what: str


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return every mutant of a module in the order of its text."""
    source = _Source(text)
    changes = sorted(source.changes(), key=lambda change: (change.start, change.end, change.what, change.by))
    found: dict[str, Mutant] = {}
    for change in changes:
        changed = source.with_change(change)
        if changed != text and changed not in found and _compiles(changed):
            line = source.data[: change.start].count(b"\n") + 1
            found[changed] = Mutant(path, line, change.what, changed)
    return list(found.values())


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Source:
    """A module's text with the places of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def with_change(self, change: _Change) -> str:
        return (self.data[: change.start] + change.by.encode() + self.data[change.end :]).decode()

    def changes(self) -> Iterator[_Change]:
        for node in _walked(self.tree):
            for operator in _ALL:
                yield from operator(self, node)

    def start(self, node: "_Placed") -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: "_Placed") -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def words(self, node: "_Placed") -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def between(self, left: ast.expr, right: ast.expr, pattern: str, by: str, what: str) -> Iterator[_Change]:
        """Replace the one word between two nodes."""
        begin, gap = self.end(left), self.data[self.end(left) : self.start(right)].decode()
        words = re.search(rf"(?<![\w<>=!]){pattern}(?![\w<>=!])", gap)
        if words:
            offset = len(gap[: words.start()].encode())
            yield _Change(begin + offset, begin + offset + len(words.group().encode()), by, what)


def _walked(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what is executed: no annotations, no decorators, no messages of errors, nothing that only logs."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _is_silent(node):
                yield node
                yield from _walked(node)


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    return isinstance(node, ast.Expr) and bool(_SILENT.match(ast.unparse(node)))


def _comparisons(source: _Source, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            pattern, by = _OPERATORS[type(operator)]
            yield from source.between(left, right, pattern, by, "comparison")


def _connectives(source: _Source, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BoolOp):
        word, by = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from source.between(left, right, word, by, "connective")


def _negations(source: _Source, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _Change(source.start(node), source.end(node), f"({source.words(node.operand)})", "negation dropped")
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        test = node.test
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield _Change(source.start(test), source.end(test), f"(not ({source.words(test)}))", "condition turned")


def _constants(source: _Source, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield _Change(source.start(node), source.end(node), str(not node.value), "constant")
        elif isinstance(node.value, int):
            yield _Change(source.start(node), source.end(node), str(node.value + 1), "constant")


def _elements(source: _Source, node: ast.AST) -> Iterator[_Change]:
    """Drop one element of a literal collection of constants or names."""
    if not isinstance(node, ast.Set | ast.List | ast.Tuple) or len(node.elts) < 3:
        return
    if all(isinstance(each, ast.Constant | ast.Attribute | ast.Name) for each in node.elts):
        yield from _without(source, list(node.elts), "element dropped")


def _arguments(source: _Source, node: ast.AST) -> Iterator[_Change]:
    """Drop one keyword argument of a call."""
    if isinstance(node, ast.Call):
        parts: list[_Placed] = sorted([*node.args, *node.keywords], key=source.start)
        for change, part in zip(_without(source, parts, "argument dropped"), parts, strict=True):
            if isinstance(part, ast.keyword) and part.arg is not None and part.arg not in _WORDS_FOR_PEOPLE:
                yield change


def _without(source: _Source, parts: "Sequence[_Placed]", what: str) -> Iterator[_Change]:
    for place, part in enumerate(parts):
        if place:
            yield _Change(source.end(parts[place - 1]), source.end(part), "", what)
        else:
            end = source.start(parts[1]) if len(parts) > 1 else source.end(part)
            yield _Change(source.start(part), end, "", what)


def _statements(source: _Source, node: ast.AST) -> Iterator[_Change]:
    """Drop a call that stands alone."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield _Change(source.start(node), source.end(node), "pass", "call dropped")


def _bounds(source: _Source, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
        other = "max" if node.func.id == "min" else "min"
        yield _Change(source.start(node.func), source.end(node.func), other, "bound turned")


def _answers(source: _Source, node: ast.AST) -> Iterator[_Change]:
    """Turn what a function returns that says yes or no."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.returns is None:
        return
    if ast.unparse(node.returns) == "bool":
        values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        for value in values:
            yield _Change(source.start(value), source.end(value), f"(not ({source.words(value)}))", "answer turned")


_ALL: tuple[Callable[[_Source, ast.AST], Iterator[_Change]], ...] = (
    _comparisons,
    _connectives,
    _negations,
    _constants,
    _elements,
    _arguments,
    _statements,
    _bounds,
    _answers,
)
