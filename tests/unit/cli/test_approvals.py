"""``soong approvals`` as a command: what it takes, what it says of wrong words, its exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from soong.orchestrator.cli.approvals import app
from soong.shared.core.errors import NotFoundError, UsageError
from tests.contract.databases import migrate


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    migrate(f"sqlite:///{home}/soong.db")
    return home


@pytest.fixture
def home(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which something has run and nothing waits."""
    monkeypatch.setenv("SOONG_AGENT_HOME", str(migrated))
    return migrated


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_home_in_which_nothing_has_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "none"))

    for words in (["list"], ["show", "abcdefgh"], ["allow", "abcdefgh"], ["watch", "--json"]):
        outcome = call(*words)
        assert isinstance(outcome.exception, UsageError)
        assert "nothing has run" in str(outcome.exception)


@pytest.mark.spec("PER-15")
def test_an_empty_list_is_a_sentence_and_an_empty_array(home: Path) -> None:
    assert call("list").output == "no question waits\n"
    assert json.loads(call("list", "--all", "--json").output) == []


@pytest.mark.parametrize("verb", ["show", "allow", "deny"])
def test_a_question_that_does_not_exist_is_named(home: Path, verb: str) -> None:
    outcome = call(verb, "nothing1")

    assert isinstance(outcome.exception, NotFoundError)
    assert str(outcome.exception) == "there is no permission request 'nothing1'"


@pytest.mark.parametrize("words", [["list", "--session", "sess_x"], ["watch", "--json", "--session", "sess_x"]])
def test_a_session_that_does_not_exist_is_named(home: Path, words: list[str]) -> None:
    assert isinstance(call(*words).exception, NotFoundError)


def test_watching_needs_a_terminal_or_asks_for_json(home: Path) -> None:
    outcome = call("watch")

    assert isinstance(outcome.exception, UsageError)
    assert "use --json to look, `soong approvals allow ID` to answer" in str(outcome.exception)


@pytest.mark.parametrize("words", [["deny", "a", "--session"], ["allow", "a", "--wait", "-1"]])
def test_wrong_words_are_usage(words: list[str]) -> None:
    assert call(*words).exit_code == 2


@pytest.mark.parametrize(
    "words", [["deny"], ["allow", "a", "--task", "b"], ["allow", "a", "--tool", "code.write_file"]]
)
def test_questions_are_named_or_chosen(words: list[str]) -> None:
    outcome = call(*words)

    assert isinstance(outcome.exception, UsageError)
    assert "name the questions to answer, or choose them" in str(outcome.exception)
