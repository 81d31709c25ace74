"""``soong demo``: the examples that are installed with the program."""

import json
from pathlib import Path

import pytest

from soong.orchestrator.cli.init import examples
from tests.unit.cli.calling import soong


def test_the_list_names_every_example_with_a_sentence_that_is_not_cut(tmp_path: Path) -> None:
    shown = soong("demo", "--list", home=tmp_path).stdout
    listed = json.loads(soong("demo", "--list", "--json", home=tmp_path).stdout)

    assert {"approve", "audit", "hello", "mixed", "pull", "refactor", "research"} <= {one["name"] for one in listed}
    assert all(one["summary"] in shown for one in listed)


@pytest.mark.parametrize("name", [one.name for one in examples()])
def test_a_copy_is_a_plan_without_problem(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"

    made = soong("demo", name, "--copy", str(folder), home=tmp_path)
    checked = soong("tasks", "validate", made.stdout.strip(), home=tmp_path)

    assert (made.returncode, Path(made.stdout.strip())) == (0, folder / f"{name}.yaml")
    assert f"run {folder}/{name}.yaml" in made.stderr
    assert checked.returncode == 0
    assert "is a plan" in checked.stderr


def test_a_copy_replaces_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "hello.py"
    mine.write_text("mine")

    refused = soong("demo", "hello", "--copy", str(tmp_path), home=tmp_path)

    assert (refused.returncode, mine.read_text()) == (2, "mine")
    assert f"{tmp_path} has hello.py already; choose another folder with --copy DIR" in refused.stderr
    assert not (tmp_path / "hello.yaml").exists()


def test_a_copy_into_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")

    refused = soong("demo", "hello", "--copy", str(file), home=tmp_path)

    assert (refused.returncode, file.read_text()) == (2, "mine")
    assert "is not a folder" in refused.stderr


@pytest.mark.parametrize("name", ["nope", "../hello", ""])
def test_an_unknown_example_is_refused_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    refused = soong("demo", name, home=tmp_path)

    assert refused.returncode == 2
    assert f"there is no example {name!r}; choose one of approve, audit, hello" in refused.stderr
    assert not (tmp_path / "soong" / "soong.db").exists()
