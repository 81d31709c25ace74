"""docs/reference/approvals.md shows commands that exist, every command that exists, and every way a question ends."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from soong.orchestrator.approvals.approval import status_of_question
from soong.orchestrator.cli import approvals
from soong.orchestrator.cli.application import build
from tests.unit.orchestrator.test_endings import WAYS

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "approvals.md").read_text(encoding="utf-8")
TYPED = sorted(set(re.findall(r"^\$ soong (.+)$", TEXT, flags=re.MULTILINE)))
APPROVALS = typer.main.get_command(approvals.app)


def parameters(line: str) -> dict[str, object]:
    """Parse a command line without doing what it says."""
    name, *words = shlex.split(line)
    command = build([name]).commands[name]
    if isinstance(command, TyperGroup):
        name, *words = words
        command = command.commands[name]
    return dict(command.make_context(name, words).params)


@pytest.mark.parametrize("line", TYPED)
def test_every_command_that_is_shown_can_be_typed(line: str) -> None:
    assert parameters(line)


def test_every_command_is_shown() -> None:
    assert isinstance(APPROVALS, TyperGroup)

    assert set(APPROVALS.commands) == {line.split()[1] for line in TYPED if line.startswith("approvals ")}


def test_every_option_is_described() -> None:
    assert isinstance(APPROVALS, TyperGroup)
    options = {
        option
        for command in APPROVALS.commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }

    assert not {option for option in options if option not in TEXT}


@pytest.mark.spec("PER-14")
def test_every_way_a_question_ends_is_in_the_table() -> None:
    told = set(re.findall(r"^\| `([a-z ]+)` \|", TEXT, flags=re.MULTILINE))

    assert {status_of_question(question).word for question in WAYS.values()} <= told
