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


def test_files_of_another_program_are_imported_and_what_has_no_meaning_is_reported(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "nested"
    theirs.mkdir(parents=True)
    (theirs / "a.md").write_text("---\nname: a\ndescription: b\ntools: Read, Grep, Foo\ncolor: red\n---\nx")
    (theirs / "b.md").write_text("---\nname: B-x\ndescription: A: b\n---\nx")
    (theirs / "README.md").write_text("# Agents")

    done = soong("agents", "import", str(tmp_path / "theirs"), home=tmp_path)
    again = soong("agents", "import", str(tmp_path / "theirs"), home=tmp_path)
    shown = {one: json.loads(soong("agents", "show", one, "--json", home=tmp_path).stdout) for one in ("a", "b-x")}
    listed = soong("agents", "list", home=tmp_path)
    checked = soong("doctor", "--json", home=tmp_path).stdout

    assert (done.returncode, done.stdout) == (0, f"2 files copied into {tmp_path / 'soong' / 'agents'}\n")
    assert "README.md: it has no front matter and is not read as an agent" in done.stderr
    assert "they count as yours: no run is marked as tainted by their text" in done.stderr
    assert (again.returncode, "there is an agent 'a' already" in again.stderr) == (2, True)
    assert shown["a"]["suggested_tools"] == ["code.read_file", "code.search"]
    assert shown["b-x"]["description"] == "A: b"
    assert listed.stderr.count("fields that have no meaning here are ignored: color") == 1
    assert "tools that are not known here are left out: Foo" in listed.stderr
    assert "2 defined in" in checked
    assert "a.md: fields that have no meaning" in checked


def test_agents_are_imported_into_a_project_when_asked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.md").write_text("---\nname: a\ndescription: b\ntools: Read\n---\nx")
    (tmp_path / "project").mkdir()

    done = soong("agents", "import", str(tmp_path / "in"), "--project", str(tmp_path / "project"), home=tmp_path)
    listed = json.loads(soong("agents", "list", "--project", str(tmp_path / "project"), "--json", home=tmp_path).stdout)

    assert (done.returncode, "count as yours" in done.stderr) == (0, False), done.stderr
    assert "project.a" in [one["id"] for one in listed]
