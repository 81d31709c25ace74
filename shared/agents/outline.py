"""What a Python source text contains, as facts with lines: read from its syntax tree, never imported or run.

Owns one pure operation of the script language, with which a scripted review confirms by reading what a search only
suspected. Every fact has its ``line``, counted from 1, and what belongs to its list:

- ``functions``: ``name``, ``lines`` (from its ``def`` to its end)
- ``handlers``, of bare ``except``, ``Exception`` and ``BaseException`` only: ``catches``; ``swallows`` is true when the
  body only passes, continues, breaks, or returns nothing or a constant
- ``calls``: ``name`` as imported (``from pickle import loads as f`` makes ``f()`` a ``pickle.loads``), ``keywords`` as
  constants or source text, ``arguments`` as source text
- ``mutable_defaults``: ``name`` of the function, ``default`` as source text

Source text is copied from the file, on one line, and cut. It is not written from the tree: writing recurses as deep as
the tree, and a text can be nested deeper than the interpreter recurses.
"""

import ast
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json

Fact: TypeAlias = dict[str, Json]

KINDS: Final = ("functions", "handlers", "calls", "mutable_defaults")

_BROAD = frozenset({"Exception", "BaseException"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAKERS = frozenset({"list", "dict", "set", "bytearray"})
MAX_SOURCE_CHARS = 500_000
"""Of one file. Its syntax tree takes up to 800 bytes for each character."""
MAX_TEXT_CHARS: Final = 80


class _Source:
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


def python_outline(source: str) -> dict[str, Json]:
    """Return the lists of facts in line order, and as ``problem`` why the text could not be read as Python."""
    if len(source) > MAX_SOURCE_CHARS:
        return _nothing(f"the file has {len(source)} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the audited code is warned of is not our process's matter
            nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        return _nothing(f"line {error.lineno}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return _nothing(f"it cannot be parsed: {type(error).__name__}")
    aliases, text = _aliases(nodes), _Source(source)
    found: dict[str, list[Fact]] = {kind: [] for kind in KINDS}
    for node in nodes:
        for kind, fact in _facts_of(node, aliases, text):
            found[kind].append(fact)
    ordered = {kind: sorted(facts, key=lambda fact: int(str(fact["line"]))) for kind, facts in found.items()}
    return {**ordered, "problem": ""}


def _nothing(problem: str) -> dict[str, Json]:
    return {**{kind: [] for kind in KINDS}, "problem": problem}


def _aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return what imported names stand for, wherever in the file they are imported."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def _facts_of(node: ast.AST, aliases: dict[str, str], source: _Source) -> Iterator[tuple[str, Fact]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield "functions", {"line": node.lineno, "name": node.name, "lines": lines}
            yield from _mutable_defaults(node, source)
        case ast.ExceptHandler():
            catches = _catches(node.type)
            if catches:
                swallows = all(_does_nothing(one) for one in node.body)
                yield "handlers", {"line": node.lineno, "catches": catches, "swallows": swallows}
        case ast.Call():
            name = _dotted(node.func)
            if name:
                yield "calls", _call(node, name, aliases, source)


def _mutable_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef, source: _Source) -> Iterator[tuple[str, Fact]]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        made = default.func.id if isinstance(default, ast.Call) and isinstance(default.func, ast.Name) else ""
        is_literal = isinstance(default, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        if default is not None and (is_literal or made in _MAKERS):
            yield "mutable_defaults", {"line": default.lineno, "name": node.name, "default": source.of(default)}


def _catches(caught: ast.expr | None) -> str:
    if caught is None:
        return "everything"
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return next((one.id for one in names if isinstance(one, ast.Name) and one.id in _BROAD), "")


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Break():
            return True
        case ast.Return(value=None) | ast.Return(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False


def _call(node: ast.Call, name: str, aliases: dict[str, str], source: _Source) -> Fact:
    root, _, rest = name.partition(".")
    full = aliases.get(root, root) + (f".{rest}" if rest else "")
    keywords = {one.arg: _plain(one.value, source) for one in node.keywords if one.arg}
    arguments: list[Json] = [source.of(one) for one in node.args[:3]]
    return {"line": node.lineno, "name": full, "keywords": keywords, "arguments": arguments}


def _plain(value: ast.expr, source: _Source) -> Json:
    """Return a constant that JSON can hold exactly, and the source text of anything else."""
    match value:
        case ast.Constant(value=bool() | None as constant):
            return constant
        case ast.Constant(value=int() as number) if abs(number) <= MAX_SAFE_INTEGER:
            return number
        case ast.Constant(value=float() as number) if math.isfinite(number):
            return number
        case ast.Constant(value=str() as text) if not _SURROGATE.search(text[:MAX_TEXT_CHARS]):
            return text[:MAX_TEXT_CHARS]
    return source.of(value)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
