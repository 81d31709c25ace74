"""Documents that speak of code say what the code says, and their examples work."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import fields
from typer.testing import CliRunner

from soong.orchestrator.cli.application import build
from soong.orchestrator.cli.permissions import app
from soong.orchestrator.embedded.module_import import import_apart
from soong.shared.core.config import parse_config
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.configured import configured_write_roots, policy_of
from soong.shared.permissions.policy import NetworkMode
from tests.architecture.code_docs import FILES, PARTS, documents, part_names, refreshed
from tests.architecture.document_examples import Sitting, agrees, perform_warm, sittings
from tests.architecture.language import prose_of_markdown
from tests.spec_document import ROOT, read_clauses

_HINT = "write it anew: PYTHONPATH=. .venv/bin/python -P -m tests.architecture.code_docs"
_PATH = re.compile(
    r"`((?:orchestrator|worker|shared|soong|tests|benchmarks|examples|requirements)/[\w./-]+)(?:::\w+)?`"
)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_parts_made_from_code_are_fresh(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert text == refreshed(text), f"{path.name} is stale; {_HINT}"


@pytest.mark.spec("DAG-08")
@pytest.mark.parametrize("name", FILES)
def test_files_made_from_code_are_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == FILES[name](), f"{name} is stale; {_HINT}"


def test_every_part_is_in_some_document() -> None:
    placed = {name for path in documents() for name in part_names(path.read_text(encoding="utf-8"))}

    assert placed == PARTS.keys()


def test_every_clause_names_its_source_and_orders_its_obligations() -> None:
    clauses = read_clauses()
    sources = "CARD|S0|S1|S2|S3|S4|OWN"

    assert len(clauses) > 100
    assert [
        clause.id for clause in clauses if not re.match(rf"\((?:{sources})(?:, (?:{sources}))*\) ", clause.text)
    ] == []
    for clause in clauses:
        letters = list(dict.fromkeys(each.id.partition(".")[2].partition("/")[0] for each in clause.obligations))
        assert "".join(letters) == "abcdefghijklmnopqrstuvwxyz"[: len("".join(letters))], clause.id
        assert len(letters) != 1 or letters == [""], f"{clause.id} has one obligation: name it by the clause"


def _pages_of_root() -> list[Path]:
    """Return the documents at the top, without the report that ``make demo`` leaves there."""
    return [page for page in ROOT.glob("*.md") if page.name != "report.md"]


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*_pages_of_root(), *(ROOT / "docs").rglob("*.md")]

    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert not broken


def test_files_that_documents_name_exist() -> None:
    docs = ROOT / "docs"
    pages = [*_pages_of_root(), *docs.glob("*.md"), *(docs / "reference").glob("*.md")]

    gone = {
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages
        for path in _PATH.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }

    assert not gone


_SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ENDS = {"|", "||", "&&", ";", ">", "<", "&"}
PAGES = sorted([*_pages_of_root(), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")])


def _typed(text: str) -> list[str]:
    """Return the lines of a document that begin with our program, as a shell would read them."""
    lines = [line.removeprefix("$ ") for block in _SHELL.findall(text) for line in block.splitlines()]
    return [line for line in lines if line.startswith("soong ") and "…" not in line and not line.endswith("\\")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_page_shows_can_be_typed(path: Path) -> None:
    for line in _typed(path.read_text(encoding="utf-8")):
        _, name, *words = shlex.split(line, comments=True)
        end = next((number for number, word in enumerate(words) if word in _ENDS or word[0] in "<>"), len(words))
        if name != "help":
            _parse(name, words[:end])


def _parse(name: str, rest: list[str]) -> None:
    """Parse a command line without doing what it says."""
    command: Any = build([name]).commands[name]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command.make_context(name, rest)


_GUIDE = ("tutorial", "concepts", "plans", "agents", "tools", "permissions", "operations", "python")


def test_the_guide_of_a_newcomer_stays_short() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / f"{name}.md" for name in _GUIDE)]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}

    assert words["README.md"] <= 1_100
    assert sum(words.values()) <= 25_000, words


_WORDS = 12
_OTHER_FORMS = ("spec.md", "security.md", "architecture.md", "api.md", "python.md", "commands.md", "CHANGELOG.md")
"""Pages that have the same facts from another side, or are made from code."""


def test_no_words_are_on_two_pages() -> None:
    pages: dict[str, set[str]] = {}
    for path in PAGES:
        if path.name not in _OTHER_FORMS:
            prose = "\n".join(text for _, text in prose_of_markdown(path.read_text(encoding="utf-8")))
            words = [word for word in re.findall(r"[\w'./-]+", prose.lower()) if word.strip(".") != "x"]  # x: code
            for first in range(len(words) - _WORDS + 1):
                pages.setdefault(" ".join(words[first : first + _WORDS]), set()).add(path.name)

    assert {words: sorted(found) for words, found in pages.items() if len(found) > 1} == {}


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")

    missing = [path.name for path in sorted(folder.glob("[0-9]*.md")) if f"({path.name})" not in index]

    assert not missing


TESTED_PAGES = ("docs/tools.md", "docs/reference/tools.md", "docs/reference/mcp.md")
SITTINGS = [
    pytest.param(sitting, id=f"{Path(page).stem}: {sitting.title}")
    for page in TESTED_PAGES
    for sitting in sittings((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.spec("REG-06", "REG-07", "EXE-12")
@pytest.mark.parametrize("sitting", SITTINGS)
def test_what_the_document_shows_is_what_happens(sitting: Sitting, tmp_path: Path) -> None:
    done = perform_warm(sitting, tmp_path / "home")

    assert len(done) == len(sitting.commands)
    wrong = [f"$ {command.line}\n" + "\n".join(said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong, "\n\n".join(wrong)


def test_an_output_that_differs_is_noticed() -> None:
    assert agrees(["a … c", "…", "z"], ["a b c", "one", "two", "z"])
    assert not agrees(["a … c"], ["a b"])
    assert not agrees(["a"], ["a", "b"])


PLAN_TEXT = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")


def test_every_field_of_a_step_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| (?:all|agent|python|celery|map)", PLAN_TEXT, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    unwritten = {"role", "bound", "is_limited", "max_steps", "child_surface", "code"}  # set by the owner
    spelled = {"item_name": "as", "item_key": "key"}
    assert told == {spelled.get(field.name, field.name) for field in fields(StepSpec)} - unwritten


def test_the_first_plan_is_the_same_in_both_forms(tmp_path: Path) -> None:
    (written, example, *_) = re.findall(r"```yaml\n(.*?)```", PLAN_TEXT, re.DOTALL)
    (python, *_) = re.findall(r"```python\n(.*?)```", PLAN_TEXT, re.DOTALL)
    (tmp_path / "words.py").write_text(python)

    found = import_apart(["words"], (), [str(tmp_path)], ("words", "words")).document

    assert found == yaml.safe_load(written)
    assert [step.id for step in parse_plan(example, "docs/plans.md").steps] == ["look", "tell"]


DOCS = ROOT / "docs"
PERMISSION_PAGES = (DOCS / "permissions.md", DOCS / "reference" / "configuration.md")
PERMISSION_TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PERMISSION_PAGES)
EXAMPLES = re.findall(r"```toml\n(.*?)```", PERMISSION_TEXT, re.DOTALL)
COMMANDS = [
    line[2:] for block in re.findall(r"```console\n(.*?)```", PERMISSION_TEXT, re.DOTALL) for line in block.splitlines()
]


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_configuration_on_the_page_is_one(example: str) -> None:
    config = parse_config(example)

    policy_of(config)
    configured_write_roots(config)


def test_the_page_shows_every_section_and_every_mode_of_the_network() -> None:
    sections = set(re.findall(r"^\[+(\w+)", "\n".join(EXAMPLES), re.MULTILINE))

    assert {"permission", "tools", "paths", "network"} <= sections
    assert all(f"`{mode}`" in PERMISSION_TEXT for mode in NetworkMode)


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_on_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    program, group, *words = shlex.split(command)

    outcome = CliRunner().invoke(app, words)

    assert (program, group, outcome.exit_code) == ("soong", "permissions", 0)
