"""A reader who follows one step, from the command to its result, enters a bounded part of the product."""

from pathlib import Path

import pytest

from tests.architecture.walk import walked

BOUNDS = {"echo": (730, 156), "agent": (1_150, 212)}
"""The most functions and files of a walk: as few as there are now, so that none come in unseen."""


@pytest.mark.timeout(300)
def test_a_step_enters_few_functions_and_files(tmp_path: Path) -> None:
    found = {name: (functions, files) for name, (functions, files, _) in walked(tmp_path).items()}

    assert found.keys() == BOUNDS.keys()
    for name, (functions, files) in found.items():
        assert 100 < functions <= BOUNDS[name][0], name
        assert 50 < files <= BOUNDS[name][1], name
