"""The documents on declared tools and skills say what the code does; their examples run."""

import re
from pathlib import Path

import pytest

from soong.shared.core.config import Config
from soong.shared.toolsets.declarative.definition import ToolFile
from soong.shared.toolsets.declarative.protocol import CLAIMABLE, RESULT_SCHEMA
from soong.shared.toolsets.skills.toolset import SkillTools
from tests.unit.tools.parts import make_bench

DOCS = Path(__file__).parents[3] / "docs"


def document(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def example(name: str, language: str) -> str:
    _, _, text = document(name).rpartition("\n## Skills\n")
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def rows(text: str, heading: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text.partition(heading)[2].partition("\n## ")[0], re.MULTILINE)


def test_every_field_of_a_file_and_of_a_result_is_documented() -> None:
    text = document("reference/declarative.md")

    assert rows(text, "## Fields") == list(ToolFile.model_fields)
    fields = RESULT_SCHEMA["properties"]
    assert set(rows(text, "## Input and output of the program")) == set(fields)
    assert all(f'"{name}"' in text for name in set(fields["error"]["properties"]) - {"retryable"})


def test_every_type_of_error_that_a_tool_may_have_is_documented() -> None:
    listed = document("reference/declarative.md").partition("Allowed error types:")[2].partition(".")[0]

    assert set(re.findall(r"`(\w+)`", listed)) == {str(each) for each in CLAIMABLE}


@pytest.mark.spec("SKL-01")
async def test_the_example_of_a_skill_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "skills" / "release"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(example("agents.md", "markdown"))
    bench = make_bench(SkillTools(tmp_path / "home", Config()).tools(), project=tmp_path)

    result = await bench.call("internal.load_skill", name="release")

    assert result.error is None
    assert isinstance(result.data, dict)
    assert result.data["allowed_tools"] == ["code.read_file", "code.run_command"]
