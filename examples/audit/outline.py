"""The contents of a Python source text, as facts with lines: read from its syntax tree, never imported or run.

Source text is copied from the file, on one line, and cut. It is not written from the tree: writing recurses as deep as
the tree, and a text can be nested deeper than the interpreter recurses.
"""

import ast
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

BROAD = frozenset({"Exception", "BaseException"})
MUTABLE_CALLS = frozenset({"list", "dict", "set", "bytearray"})
MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAX_SOURCE_CHARS = 500_000
"""Per file. Its syntax tree takes up to 800 bytes for each character."""
MAX_TEXT_CHARS = 80

_PARSING = threading.Lock()
"""CPython counts the depth of a tree once for all threads: two that make trees at once end with a SystemError
(python/cpython#106905). It also keeps apart what they do to the filters of warnings."""


@dataclass(frozen=True, slots=True)
class Function:
    line: int
    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class BroadHandler:
    """``swallows``: its body only passes, continues, breaks, or returns nothing or a constant."""

    line: int
    catches: str
    swallows: bool


@dataclass(frozen=True, slots=True)
class MutableDefault:
    line: int
    function: str
    default: str


@dataclass(frozen=True, slots=True)
class NamedCall:
    """``name`` is as imported: after ``from pickle import loads as f``, ``f()`` is a call of ``pickle.loads``."""

    line: int
    name: str
    is_shell: bool
    loader: str


@dataclass(slots=True)
class Outline:
    """The facts of one file; ``problem`` says why it could not be read as Python."""

    problem: str = ""
    functions: list[Function] = field(default_factory=list)
    handlers: list[BroadHandler] = field(default_factory=list)
    mutable_defaults: list[MutableDefault] = field(default_factory=list)
    calls: list[NamedCall] = field(default_factory=list)


def outline_of(source: str) -> Outline:
    if len(source) > MAX_SOURCE_CHARS:
        return Outline(f"the file has {len(source)} characters")
    try:
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about the audited code is not our process's matter
            nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        return Outline(f"line {error.lineno}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Outline(f"it cannot be parsed: {type(error).__name__}")
    found, names, text = Outline(), imported_names(nodes), SourceText(source)
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.functions.append(Function(node.lineno, node.name, lines))
                found.mutable_defaults += mutable_defaults(node, text)
            case ast.ExceptHandler() if catches := caught(node.type):
                swallows = all(map(does_nothing, node.body))
                found.handlers.append(BroadHandler(node.lineno, catches, swallows))
            case ast.Call() if name := dotted(node.func):
                found.calls.append(named_call(node, name, names, text))
    return found


class SourceText:
    """The text of a file, by the places that its syntax tree names: lines from 1, columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        # As the parser counts: it knows three line ends, `str.splitlines` eleven.
        self._lines = text.encode().splitlines(keepends=True)

    def of(self, node: ast.expr) -> str:
        """Return the text of a node on one line, cut to ``MAX_TEXT_CHARS``."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        taken = b""
        for number in range(first, last + 1):
            line = self._lines[number]
            end = node.end_col_offset if number == last else len(line)
            taken += line[node.col_offset if number == first else 0 : end][: 8 * MAX_TEXT_CHARS]
            if len(taken) > 8 * MAX_TEXT_CHARS:
                break
        return " ".join(taken.decode("utf-8", "ignore").split())[:MAX_TEXT_CHARS]


def imported_names(nodes: list[ast.AST]) -> dict[str, str]:
    """Return what imported names stand for, wherever in the file they are imported."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def mutable_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef, text: SourceText) -> Iterator[MutableDefault]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        made = default.func.id if isinstance(default, ast.Call) and isinstance(default.func, ast.Name) else ""
        if default is not None and (isinstance(default, MUTABLE_LITERALS) or made in MUTABLE_CALLS):
            yield MutableDefault(default.lineno, node.name, text.of(default))


def caught(expression: ast.expr | None) -> str:
    """Return the broad class that a handler catches; empty for a narrow one."""
    if expression is None:
        return "everything"
    names = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    return next((one.id for one in names if isinstance(one, ast.Name) and one.id in BROAD), "")


def does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Break() | ast.Return(value=None) | ast.Return(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
    return False


def named_call(node: ast.Call, name: str, names: dict[str, str], text: SourceText) -> NamedCall:
    root, _, rest = name.partition(".")
    keywords = {one.arg: one.value for one in node.keywords if one.arg}
    shell = keywords.get("shell")
    is_shell = isinstance(shell, ast.Constant) and shell.value is True
    loader = [keywords["Loader"]] if "Loader" in keywords else []
    full = names.get(root, root) + (f".{rest}" if rest else "")
    return NamedCall(node.lineno, full, is_shell, " ".join(map(text.of, [*loader, *node.args[:3]])))


def dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
