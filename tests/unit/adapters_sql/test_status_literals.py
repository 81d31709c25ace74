"""The statuses that statements spell out are those of the tables of moves: SQL keeps no rules of its own."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from importlib import import_module
from itertools import pairwise
from pkgutil import walk_packages

import pytest

from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import STEP_TRANSITIONS, TASK_TRANSITIONS, StepStatus, TaskStatus
from soong.shared.storage import sql
from soong.shared.storage.sql.engine.statements import Statement

STEP_MOVES = {(source.value, target.value) for (source, _), target in STEP_TRANSITIONS.items()}
TASK_MOVES = {(source.value, target.value) for (source, _), target in TASK_TRANSITIONS.items()}
MOVES = {"steps": STEP_MOVES, "tasks": TASK_MOVES}
NAMES: dict[str, AbstractSet[str]] = {
    "steps": {status.value for status in StepStatus},
    "tasks": {status.value for status in TaskStatus},
    "runs": {status.value for status in RunStatus},
}
UPDATE = re.compile(
    r"\bUPDATE (steps|tasks|runs)( AS \w+)? SET\b(.*?)(?=;|\bUPDATE \w+(?: AS \w+)? SET\b|$)", re.DOTALL
)
TAKES = re.compile(r"\bstatus(?: \|\| '')? (?:= '(\w+)'|IN \(((?:'\w+'(?:, )?)+)\))")
WITHOUT_SOURCE = {"wait again": {"pending"}, "take": {"ready"}, "take only": {"ready"}}
"""The statements that move what has been locked and read before, and from which statuses."""
IN_ONE = {("pending", "waiting"): ("expanding",), ("pending", "running"): ("ready",)}
"""Moves that one statement makes together, and what lies between."""


def statements() -> Iterator[Statement]:
    for module in walk_packages(sql.__path__, f"{sql.__name__}."):
        if ".migrations" not in module.name:
            yield from (one for one in vars(import_module(module.name)).values() if isinstance(one, Statement))


def moves() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, table, the literal a status is set to ("" for none), and a literal it is set from."""
    for statement in {one.name: one for one in statements()}.values():
        for table, _, body in UPDATE.findall(statement.sqlite + ";" + statement.postgres):
            assigned, _, condition = body.partition("WHERE")
            target = re.search(r"(?:^ |, )status = '(\w+)'", assigned)
            # A statement that also reads rows of other steps names the table of those that it moves.
            found = re.search(rf"\b{table}\.{TAKES.pattern[2:]}", condition) or TAKES.search(condition)
            sources = set(re.findall(r"\w+", (found[1] or found[2]).replace("'", " "))) if found else set()
            read = WITHOUT_SOURCE.get(statement.name.partition(":")[0], {""}) if table == "steps" else {""}
            for source in sources or read:
                yield statement.name, table, target[1] if target else "", source


def test_statements_are_found() -> None:
    assert sum(bool(target and source) for _, _, target, source in moves()) > 5


@pytest.mark.spec("DAG-04")
def test_every_status_that_an_update_spells_out_is_one_of_its_table() -> None:
    for name, table, target, source in moves():
        assert {target, source} - {""} <= NAMES[table], name


@pytest.mark.spec("DAG-04")
def test_every_update_that_spells_out_a_move_makes_a_legal_one() -> None:
    for name, table, target, source in moves():
        if target and table in MOVES:
            way = (source, *IN_ONE.get((source, target), ()), target)
            assert set(pairwise(way)) <= MOVES[table], f"{name}: {source or 'any status'} -> {target}"
