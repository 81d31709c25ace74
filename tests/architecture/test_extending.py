"""Documents whose commands a test runs: what they show is what happens."""

from pathlib import Path

import pytest

from tests.architecture.document_examples import Sitting, agrees, perform, sittings
from tests.spec_document import ROOT

PAGES = ("docs/tools.md", "docs/reference/tools.md", "docs/reference/mcp.md")
SITTINGS = [
    pytest.param(sitting, id=f"{Path(page).stem}: {sitting.title}")
    for page in PAGES
    for sitting in sittings((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.spec("REG-06", "REG-07", "EXE-12")
@pytest.mark.parametrize("sitting", SITTINGS)
def test_what_the_document_shows_is_what_happens(sitting: Sitting, tmp_path: Path) -> None:
    done = perform(sitting, tmp_path / "home")

    assert len(done) == len(sitting.commands)
    wrong = [f"$ {command.line}\n" + "\n".join(said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong, "\n\n".join(wrong)


def test_an_output_that_differs_is_noticed() -> None:
    assert agrees(["a … c", "…", "z"], ["a b c", "one", "two", "z"])
    assert not agrees(["a … c"], ["a b"])
    assert not agrees(["a"], ["a", "b"])
