"""What docs/spec.md lists: clauses, each with its obligations."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "docs" / "spec.md"

_CLAUSE = re.compile(r"- \*\*(?P<id>[A-Z]+-\d+)\*\* (?P<text>.*)")
_OBLIGATION = re.compile(r"  - \*\*(?P<id>(?P<clause>[A-Z]+-\d+)\.[a-z])\*\* (?P<text>.*)")
_CASES = re.compile(r" \(cases: (?P<names>[a-z-]+(, [a-z-]+)*)\)")
_MORE = re.compile(r" {2,}(?P<text>[^ -].*)")


class SpecFormatError(ValueError):
    """docs/spec.md does not have the form that this module reads; the message names the line."""


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing that must hold and be shown by a test of its own."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause with its obligations in their order, at least one. ``text`` is its line without the id."""

    id: str
    text: str
    obligations: tuple[Obligation, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that a mark or a record may name for it, its own first."""
        named = (each.id for each in self.obligations)
        return tuple(dict.fromkeys((self.id, *(part for one in named for part in (one.partition("/")[0], one)))))


def read_clauses(text: str | None = None) -> tuple[Clause, ...]:
    """Return the clauses of a specification in its order, by default those of docs/spec.md."""
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in (SPEC.read_text(encoding="utf-8") if text is None else text).splitlines():
        if clause := _CLAUSE.fullmatch(line):
            found.append((clause["id"], clause["text"], []))
        elif obligation := _OBLIGATION.fullmatch(line):
            if not found or found[-1][0] != obligation["clause"]:
                raise SpecFormatError(f"{obligation['id']} is not below its clause")
            found[-1][2].append((obligation["id"], obligation["text"]))
        elif found and (more := _MORE.fullmatch(line)):
            _extend_last(found, more["text"])
    clauses = tuple(_clause(*each) for each in found)
    _check_unique([name for clause in clauses for name in clause.ids])
    return clauses


def known_ids() -> frozenset[str]:
    """Return every id that a mark or a record may name."""
    return frozenset(name for clause in read_clauses() for name in clause.ids)


def _extend_last(found: list[tuple[str, str, list[tuple[str, str]]]], text: str) -> None:
    clause, line, obligations = found[-1]
    if obligations:
        last, begun = obligations[-1]
        obligations[-1] = (last, f"{begun} {text}")
    else:
        found[-1] = (clause, f"{line} {text}", obligations)


def _clause(clause: str, text: str, obligations: list[tuple[str, str]]) -> Clause:
    each = [one for named, words in obligations or [(clause, text)] for one in _by_case(named, words)]
    return Clause(clause, text, tuple(each))


def _by_case(named: str, text: str) -> list[Obligation]:
    found = _CASES.search(text)
    cases = [f"/{case}" for case in found["names"].split(", ")] if found else [""]
    return [Obligation(f"{named}{case}", text) for case in cases]


def _check_unique(ids: list[str]) -> None:
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise SpecFormatError(f"docs/spec.md has {', '.join(twice)} more than once")
