"""Counts what the audit should find, by other means than the audit: tokens, indentation and plain text."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

Found = set[tuple[str, int]]

_NOTHING = re.compile(
    r"(pass|continue|break|\.\.\.|return( (None|True|False|-?\d+(\.\d+)?|[rb]?'[^']*'|[rb]?\"[^\"]*\"))?"
    r"|[rbu]?'''.*'''|[rbu]?\"\"\".*\"\"\"|[rbu]?'[^']*'|[rbu]?\"[^\"]*\")",
    re.DOTALL,
)
_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def python_files(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        if "__pycache__" not in path.parts:
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8")


def markers(root: Path) -> Found:
    return {
        (name, number)
        for name, text in python_files(root)
        for number, line in enumerate(text.split("\n"), 1)
        if re.search(r"\b(TODO|FIXME)\b", line)
    }


def long_functions(root: Path) -> Found:
    return {
        (name, first.start[0])
        for name, text in python_files(root)
        for header, body in _blocks(text)
        for first in [header[1] if header[0].string == "async" else header[0]]
        if first.string == "def" and (body or header)[-1].end[0] - header[0].start[0] + 1 > 80
    }


def swallowed(root: Path) -> Found:
    return {
        (name, header[0].start[0])
        for name, text in python_files(root)
        for header, body in _blocks(text)
        if header[0].string == "except" and _is_broad(header) and _does_nothing(text, body)
    }


def unsafe_loads(root: Path) -> Found:
    """Calls whose name ends in pickle/marshal.load(s), or is imported from there under another name."""
    found: Found = set()
    for name, text in python_files(root):
        renamed = re.findall(r"from (?:pickle|marshal|_pickle)\s+import\s+loads? as (\w+)", text)
        call = re.compile(rf"(\b(pickle|marshal)\s*\.\s*loads?|\b({'|'.join(renamed) or 'no_such_name'}))\s*\(")
        for number, line in enumerate(_code_lines(text), 1):
            if call.search(line):
                found.add((name, number))
    return found


def untested(root: Path) -> set[str]:
    names = [name for name, _ in python_files(root)]
    stems = {name.rpartition("/")[2].removesuffix(".py") for name in names}
    tested = {stem.removeprefix("test_") for stem in stems if stem.startswith("test_")}
    tested |= {stem.removesuffix("_test") for stem in stems if stem.endswith("_test")}
    found = set()
    for name in names:
        stem = name.rpartition("/")[2].removesuffix(".py")
        is_test = stem.startswith("test_") or stem.endswith("_test")
        if not is_test and stem not in tested | {"__init__", "__main__", "conftest", "setup"}:
            found.add(name)
    return found


def _blocks(text: str) -> Iterator[tuple[list[tokenize.TokenInfo], list[tokenize.TokenInfo]]]:
    """Yield each compound statement as the tokens of its header and of its body (with what is nested in it)."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    starts = [0, *(index + 1 for index, token in enumerate(tokens) if token.type in (tokenize.NEWLINE, tokenize.NL))]
    layout = (tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    for first in starts:
        start = next((at for at in range(first, len(tokens)) if tokens[at].type not in layout), len(tokens))
        if start < len(tokens) and tokens[start].string in ("def", "async", "except"):
            end = next(index for index in range(start, len(tokens)) if tokens[index].type == tokenize.NEWLINE)
            yield _split(tokens, start, end)


def _split(
    tokens: list[tokenize.TokenInfo], start: int, end: int
) -> tuple[list[tokenize.TokenInfo], list[tokenize.TokenInfo]]:
    colon = _colon(tokens, start, end)
    header = tokens[start:end]
    on_line = [token for token in tokens[colon + 1 : end] if token.type not in _LAYOUT]
    if on_line:
        return header, on_line
    depth, body = 0, []
    for token in tokens[end + 1 :]:
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if depth == 0 and token.type == tokenize.DEDENT:
            break
        if token.type not in _LAYOUT or token.type == tokenize.NEWLINE:
            body.append(token)
    return header, body[:-1] if body and body[-1].type == tokenize.NEWLINE else body


def _colon(tokens: list[tokenize.TokenInfo], start: int, end: int) -> int:
    depth = 0
    for index in range(start, end):
        depth += (tokens[index].string in "([{") - (tokens[index].string in ")]}") if tokens[index].string else 0
        if tokens[index].string == ":" and depth == 0:
            return index
    raise AssertionError(f"no colon in line {tokens[start].start[0]}")


def _is_broad(header: list[tokenize.TokenInfo]) -> bool:
    words = [token.string for token in header]
    caught = words[1 : words.index("as") if "as" in words else words.index(":")]
    return not caught or bool({"Exception", "BaseException"} & set(caught))


def _does_nothing(text: str, body: list[tokenize.TokenInfo]) -> bool:
    statement: list[str] = []
    statements = []
    for token in body:
        if token.type == tokenize.NEWLINE or token.string == ";":
            statements.append(statement)
            statement = []
        else:
            statement.append(token.string)
    statements.append(statement)
    return all(_NOTHING.fullmatch(" ".join(words).replace("- ", "-")) for words in statements if words)


def _code_lines(text: str) -> list[str]:
    """Return the lines of a source with its comments and strings blanked out."""
    lines = [list(line) for line in text.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            (first, left), (last, right) = token.start, token.end
            for number in range(first, last + 1):
                line = lines[number - 1]
                start, stop = left if number == first else 0, right if number == last else len(line)
                line[start:stop] = " " * (stop - start)
    return ["".join(line) for line in lines]
