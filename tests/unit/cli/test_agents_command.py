"""``soong agents``: what plans may name, and the files it comes from."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.calling import soong

pytestmark = pytest.mark.spec("DIS-02")

PLAN = "title: t\nsteps: [{id: a, instructions: x, agent: %s, script: builtin.echo}]\n"


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / "soong" / "agents" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_definition_is_written_checked_listed_shown_and_named_by_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN % "notes")

    made = soong("agents", "new", "notes", home=tmp_path)
    checked = soong("agents", "validate", home=tmp_path)
    listed = json.loads(soong("agents", "list", "--json", home=tmp_path).stdout)
    shown = json.loads(soong("agents", "show", "notes", "--json", home=tmp_path).stdout)
    named = soong("tasks", "validate", str(plan), home=tmp_path)

    assert Path(made.stdout.strip()) == tmp_path / "soong" / "agents" / "notes.md"
    assert checked.stdout == "1 file, no problem\n"
    assert [one["id"] for one in listed if one["source"] != "built-in"] == ["notes"]
    assert shown in listed
    assert named.returncode == 0, named.stderr


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path, "notes.md", "mine")

    assert "exists; edit it" in soong("agents", "new", "notes", home=tmp_path).stderr
    assert "is the id of a built-in definition" in soong("agents", "new", "reviewer", home=tmp_path).stderr
    assert "cannot be an id" in soong("agents", "new", "../notes", home=tmp_path).stderr
    assert path.read_text() == "mine"


def test_problems_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "notes.md", "---\ndescription: d\ntemprature: 1\n---\nDo it.")

    done = soong("agents", "validate", home=tmp_path)
    document = soong("agents", "validate", str(path), "--json", home=tmp_path)
    listed = soong("agents", "list", home=tmp_path)
    checked = json.loads(soong("doctor", "--json", home=tmp_path).stdout)

    assert done.returncode == document.returncode == 2
    assert f"{path}:3 temprature: unknown field 'temprature'; did you mean 'temperature'?" in done.stderr
    (file,) = json.loads(document.stdout)
    assert (file["id"], file["problems"][0]["hint"]) == ("", "did you mean 'temperature'?")
    assert "1 file cannot be used" in listed.stderr
    (finding,) = [one for one in checked["checks"] if one["check"] == "agents"]
    assert (finding["level"], "unknown field" in finding["says"]) == ("warn", True)


def test_an_unknown_one_is_answered_with_those_that_are_known(tmp_path: Path) -> None:
    done = soong("agents", "show", "explorr", home=tmp_path)

    assert done.returncode == 2
    assert "did you mean 'explorer'?" in done.stderr


def test_the_tool_set_of_a_users_definition_is_explained(tmp_path: Path) -> None:
    write(tmp_path, "notes.md", "---\ndescription: d\nsuggested_tools: [code.search]\n---\nDo it.")

    found = json.loads(
        soong("tools", "explain", "--role", "worker", "--agent", "notes", "--json", home=tmp_path).stdout
    )

    assert found["tools"] == ["code.search"]
