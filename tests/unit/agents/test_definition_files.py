import os
from pathlib import Path

import pytest

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.definition_files import (
    MAX_BYTES,
    LiveDefinitions,
    definition_files,
    known_definitions,
    read_definition,
)
from soong.shared.core.errors import InvalidPlanError
from soong.shared.tools.surface import RunMode

pytestmark = pytest.mark.spec("DIS-02.b")

WHOLE = """---
name: release-notes
description: Writes
  release notes.
model: anthropic:claude-sonnet-5-5
fallback_models: [openai:gpt-5, "ollama:qwen3:8b"]
suggested_tools: [code.read_file, "code.s*"]
mode: readonly
limits: {max_turns: 7, max_repeated_failures: 0, max_reasks: 1, max_continuations: 0, parallel_reads: 2}
temperature: 0.5
max_tokens: 900
thinking: high
timeout_s: 20
parallel_calls: false
---

Read the log.

Write the notes.
"""
SHORT = "---\ndescription: d\n---\nDo it."


def write(home: Path, name: str, text: str) -> Path:
    path = home / "agents" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def problems(text: str, name: str = "notes.md") -> list[str]:
    with pytest.raises(InvalidPlanError) as raised:
        read_definition(text, Path(name))
    return [str(problem) for problem in raised.value.problems]


def test_every_field_is_read() -> None:
    found = read_definition(WHOLE, Path("/h/agents/notes.md"))

    assert (found.id, found.description) == ("release-notes", "Writes release notes.")
    assert (found.model, found.mode) == ("anthropic:claude-sonnet-5-5", RunMode.READONLY)
    assert found.fallback_models == ("openai:gpt-5", "ollama:qwen3:8b")
    assert found.suggested_tools == ("code.read_file", "code.s*")
    assert found.limits == {
        "max_turns": 7,
        "max_repeated_failures": 0,
        "max_reasks": 1,
        "max_continuations": 0,
        "parallel_reads": 2,
    }
    assert found.options == ModelOptions(0.5, 900, "high", 20.0, parallel_calls=False)
    assert found.instructions == "Read the log.\n\nWrite the notes."
    assert found.source == "/h/agents/notes.md"


def test_tools_may_be_one_text_with_commas() -> None:
    found = read_definition("---\ndescription: d\nsuggested_tools: code.search, code.read_file\n---\nx", Path("a.md"))

    assert found.suggested_tools == ("code.search", "code.read_file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("Do it.", "notes.md: it does not begin with front matter; write fields between", id="no-front"),
        pytest.param("---\ndescription: d\n---\n", "there is no text after the front matter", id="no-text"),
        pytest.param("---\n---\nx", "notes.md: the field 'description' is missing; add `description:`", id="empty"),
        pytest.param(
            "---\ndescription: d\n\ntemprature: 1\n---\nx",
            "notes.md:4 temprature: unknown field 'temprature'; did you mean 'temperature'?",
            id="unknown",
        ),
        pytest.param(
            "---\ndescription: d\nlimits: {max_turns: 0}\n---\nx",
            "notes.md:3 limits.max_turns: 0 cannot be used; write an integer from 1 to 10000",
            id="limit",
        ),
        pytest.param("---\ndescription: d\nmode: fast\n---\nx", "'fast' is not one of default, plan", id="mode"),
        pytest.param(
            "---\ndescription: d\nfallback_models: [gpt-5]\n---\nx",
            "fallback_models[0]: 'gpt-5' cannot be used; write a model as provider:name, such as openai:gpt-5",
            id="fallback",
        ),
        pytest.param(
            f"---\ndescription: d\nfallback_models: [{', '.join(['a:b'] * 6)}]\n---\nx",
            "fallback_models: it has 6 entries; write at most 5",
            id="many-fallbacks",
        ),
        pytest.param("---\ndescription: d\nname: Ünfit\n---\nx", "write 1 to 64 lower-case letters, digits", id="id"),
        pytest.param("---\n- a\n---\nx", "the front matter is a list; write fields", id="list"),
        pytest.param("---\ndescription: [\n---\nx", "invalid YAML", id="yaml"),
        pytest.param("---\na: &a [1]\nb: *a\n---\nx", "anchors (`&name`) are not read", id="anchor"),
        pytest.param(f"---\ndescription: {'d' * 20_000}\n---\nx", "its front matter has 20,014 characters", id="huge"),
        pytest.param("---\ndescription: d\n---\na\0b", "holds a NUL character", id="nul"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str) -> None:
    assert any(said in one for one in problems(text)), problems(text)


def test_a_files_name_that_can_be_no_id_needs_a_name() -> None:
    assert (
        "notes (1).md:2: the file's name 'notes (1)' cannot be an id; add `name:`" in problems(SHORT, "notes (1).md")[0]
    )


def test_a_broken_file_keeps_no_other_from_being_used(tmp_path: Path) -> None:
    write(tmp_path, "broken.md", "---\nno end")
    write(tmp_path, "good.md", SHORT)
    write(tmp_path, "README.txt", "not a definition")

    broken, good = definition_files(tmp_path)

    assert (broken.definition, len(broken.problems)) == (None, 1)
    assert good.definition is not None
    assert "good" in known_definitions(tmp_path).ids


@pytest.mark.parametrize("taken", ["reviewer", "first"], ids=["built-in", "another file"])
def test_an_id_is_given_once(tmp_path: Path, taken: str) -> None:
    write(tmp_path, "first.md", SHORT)
    write(tmp_path, "second.md", f"---\nname: {taken}\ndescription: other\n---\nOther.")

    first, second = definition_files(tmp_path)

    assert first.definition is not None
    assert f"the id '{taken}' is taken" in str(second.problems[0])
    assert known_definitions(tmp_path).get(taken).description != "other"


def test_what_is_no_readable_text_file_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    os.mkfifo(folder / "fifo.md")
    (folder / "folder.md").mkdir()
    (folder / "huge.md").write_text(SHORT + "x" * MAX_BYTES)
    (folder / "latin.md").write_bytes(SHORT.encode() + b"\xe9")
    (folder / "lost.md").symlink_to(folder / "nowhere")
    (folder / "memory.md").symlink_to("/proc/self/environ")

    found = {file.path.stem: str(file.problems[0]) for file in definition_files(tmp_path)}

    assert "not a regular file" in found["fifo"]
    assert "not a regular file" in found["folder"]
    assert "more than 262,144 bytes" in found["huge"]
    assert "it is not UTF-8 text" in found["latin"]
    assert found.keys() == {"fifo", "folder", "huge", "latin", "lost", "memory"}
    assert known_definitions(tmp_path).ids == known_definitions(None).ids


def test_definitions_are_those_of_now_and_read_again_when_a_file_changes_only(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "nowhere.md").symlink_to(tmp_path / "nothing")  # keeps no other from being noticed
    live = LiveDefinitions(tmp_path, lambda known: known)
    first = live.now()
    path = write(tmp_path, "new.md", SHORT)
    second = live.now()
    path.write_text(SHORT.replace("Do it.", "Do it twice."))
    third = live.now()
    again = live.now()
    path.unlink()

    assert "new" not in first.ids
    assert second.get("new").instructions == "Do it."
    assert third.get("new").instructions == "Do it twice."
    assert again is third
    assert "new" not in live.now().ids
