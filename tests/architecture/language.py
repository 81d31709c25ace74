"""The words and forms that public text avoids, and the places that have them; ``make lint`` runs it as a program.

Public text is the hand-written part of every document, the comments of examples and deployment files, and, in product
code, docstrings, comments and string literals of more than one word (help, errors, log messages). Code in a document
(fenced or between backticks), SQL and parts made from code are not prose and are skipped.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.spec_document import ROOT

_UNITS = "step|turn|run|hop|process|session|task|call|claim|slot|worker|second|minute|hour|day|decision|question|row"
_NUMBER = r"(?:\d(?:[\d,.]*\d)?|two|three|four|five|ten|hundreds|thousands|dozens)"


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern that public text avoids, and the words to use in its place."""

    pattern: re.Pattern[str]
    instead: str


def _rule(pattern: str, instead: str) -> Rule:
    return Rule(re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), instead)


RULES: tuple[Rule, ...] = (
    _rule(r"\banew\b", "again"),
    _rule(r"\bmend(?:s|ed|ing)?\b", "fix"),
    _rule(r"\boffen[cs]es?\b", "problem"),
    _rule(r"(?<!there\s)\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|later\b)\w+", "is not a …"),
    _rule(rf"\b{_NUMBER} (?!of\b|in\b|for\b|to\b|on\b|at\b|is\b|are\b)\w+ an? (?:{_UNITS})\b", "per step, per second"),
    _rule(rf"\bone \w*[^s\W] an? (?:{_UNITS})\b", "one … per step"),
    _rule(r"\btold\b", "notified, given, or name who reports it"),
    _rule(r"\bstands?\b(?! for\b|-alone|-in\b)", "is, is stored, is listed"),
    _rule(r"\bwhoever\b", "the user or process that"),
    _rule(r"\bfurther(?:more)?\b", "additional, more"),
    _rule(r"(?<!\bas\sa\s)\bwhole\b", "full, entire, all"),
    _rule(r"\bcomer-back\b", "a worker that comes back"),
    _rule(r"\bhow-manieth\b", "the number of"),
    _rule(r"\bforebears?\b", "callers, ancestors"),
    _rule(r"\bwish(?:es|ed)?\b", "request"),
    _rule(r"\bbeside\b", "next to, in addition to"),
    _rule(r"\b(?:go|goes|went|gone|going) on\b", "continue"),
    _rule(r"\bin vain\b", "without success"),
    _rule(r"\bwhat (?:\w+ )?(?:came|comes) (?:of|to)\b", "the result, the outcome"),
    _rule(r"\b(?:told|asked|said) of\b", "name who reports or asks"),
    _rule(r"\b(?:file|page|row|column|document|docstring|field|setting)s? says?\b", "contains, states, shows"),
)

SENTENCE_RULES: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"(?:^[ \t]*|(?<=[.!?:]\s)|(?<=[-*|#]\s)|(?<=\d\.\s))(?:\*\*|\[)?(?:Of|Who|What|Where)\b(?![^.!?|]*\?)",
            re.MULTILINE,
        ),
        "a subject that is a thing, first",
    ),
)
"""A sentence begins with its subject, not with a clause. Questions may."""

_AS_THEY_ARE = ("docs/spec.md", ".github/")
"""Clauses keep their words, and the forms of issues ask."""

ALLOWED: tuple[tuple[str, str, str], ...] = (
    ("shared/toolsets/code/named_files.py", "wish", "the shell of Tk has this name"),
)
"""Exact exceptions: the file, the phrase, and why that phrase is right."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A banned word in public text."""

    path: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: write {self.instead}"


Block = tuple[int, str]
"""A piece of prose and the line it begins on."""


def problems_in(path: str, blocks: Iterable[Block], rules: Sequence[Rule] = (*RULES, *SENTENCE_RULES)) -> list[Problem]:
    """Return, in the order of lines, the problems in the prose of ``path``, without the phrases that are allowed."""
    found: list[Problem] = []
    allowed = [phrase for where, phrase, _ in ALLOWED if where == path]
    for first, text in blocks:
        judged = text
        for phrase in allowed:
            judged = judged.replace(phrase, "x" * len(phrase))
        for rule in rules:
            for match in rule.pattern.finditer(judged):
                line = first + text.count("\n", 0, match.start())
                found.append(Problem(path, line, " ".join(match.group().split()), rule.instead))
    return sorted(found, key=lambda problem: problem.line)


_SKIPPED = re.compile(
    r"^(?P<f> *```).*?^(?P=f) *$|<!-- made from code: ([a-z-]+) -->.*?<!-- end: \2 -->", re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(r"``[^`]*``|`[^`]*`")


def prose_of_markdown(text: str) -> Iterator[Block]:
    """Yield a document without its code, line for line, and without the parts that are made from code."""
    blanked = _SKIPPED.sub(_lines_of, text)
    yield 1, _INLINE.sub(lambda match: "x" + _lines_of(match), blanked)


def _lines_of(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


_COMMENT = re.compile(r"(?:^|\s)(?:#+|--)\s(.*)|^\s*(?:description|summary): (.*)")


def prose_of_comments(text: str) -> Iterator[Block]:
    """Yield the comments of YAML, shell, SQL and configuration files, and the descriptions in examples."""
    found = (_COMMENT.search(line) for line in text.splitlines())
    yield 1, "\n".join((match[1] or match[2] or "") if match else "" for match in found)


_SQL = re.compile(r"\s*(?:/\*|--|(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|GRANT)\b)")


def prose_of_python(source: str) -> Iterator[Block]:
    """Yield docstrings and string literals of more than one word; SQL is left out."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if " " in node.value and not _SQL.match(node.value):
            yield node.lineno, _INLINE.sub(lambda match: "x" + _lines_of(match), node.value)


def sentences_of_python(source: str) -> Iterator[Block]:
    """Yield docstrings, also those of attributes, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, _INLINE.sub(lambda match: "x" + _lines_of(match), node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


_PLACES = (
    "*.md", "docs/**/*.md", ".github/**/*.md", "examples/**/*.md", "examples/**/*.yaml", "examples/**/*.py",
    "deploy/**/*", "orchestrator/**/*.py", "shared/**/*.py", "worker/**/*.py", "soong/*.py",
)  # fmt: skip


def public_files() -> list[str]:
    """Return the files whose text is public."""
    found = {str(path.relative_to(ROOT)) for place in _PLACES for path in ROOT.glob(place) if path.is_file()}
    return sorted(found)


def problems_of(path: str) -> list[Problem]:
    """Return the banned words in the public text of the file ``path`` of the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        sentences = problems_in(path, sentences_of_python(text), SENTENCE_RULES)
        return [*problems_in(path, prose_of_python(text), RULES), *sentences]
    prose = prose_of_markdown(text) if path.endswith(".md") else prose_of_comments(text)
    return problems_in(path, prose, RULES) if path.startswith(_AS_THEY_ARE) else problems_in(path, prose)


def main(paths: list[str]) -> int:
    """Print each banned word in ``paths`` (or in all public files); return 1 when there is one."""
    chosen = [path for path in public_files() if path.startswith(tuple(paths))] if paths else public_files()
    found = [problem for path in chosen for problem in problems_of(path)]
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
