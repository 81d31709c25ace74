"""``soong approvals``: how questions are named, how an answer ends, and the document of a question."""

import json
import re
import socket
import threading
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from soong.orchestrator.approvals.approval import status_of_question
from soong.orchestrator.cli import approvals
from soong.orchestrator.cli.approvals import app
from soong.orchestrator.client.home_api import HomeApi, HomeUnreachableError
from soong.shared.core.errors import NotFoundError, UsageError
from tests.contract.databases import migrate
from tests.unit.orchestrator.test_endings import WAYS


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


TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "approvals.md").read_text(encoding="utf-8")

TYPED = sorted(set(re.findall(r"^\$ soong (.+)$", TEXT, flags=re.MULTILINE)))

APPROVALS = typer.main.get_command(approvals.app)


def test_every_command_is_shown() -> None:
    assert isinstance(APPROVALS, TyperGroup)

    assert set(APPROVALS.commands) == {line.split()[1] for line in TYPED if line.startswith("approvals ")}


@pytest.mark.spec("PER-14")
def test_every_way_a_question_ends_is_in_the_table() -> None:
    told = set(re.findall(r"^\| `([a-z ]+)` \|", TEXT, flags=re.MULTILINE))

    assert {status_of_question(question).word for question in WAYS.values()} <= told


EVENT = b'id: 1\ndata: {"id": "1"}\n\n'

END = b"event: end\ndata: {}\n\n"


def answering(folder: Path, body: bytes) -> HomeApi:
    """Return the operations of a home whose service sends this stream once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "api.sock"))
    listener.listen()
    (folder / "service.json").write_text(json.dumps({"control": str(folder / "control.sock")}))

    def answer() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    threading.Thread(target=answer, daemon=True).start()
    return HomeApi(folder)


async def test_a_stream_that_was_ended_is_complete(tmp_path: Path) -> None:
    events = answering(tmp_path, EVENT + END).stream("/v1/runs/run_1/stream")

    assert [event async for event in events] == [("", {"id": "1"})]


async def test_a_stream_that_breaks_off_is_no_end(tmp_path: Path) -> None:
    events = answering(tmp_path, EVENT).stream("/v1/runs/run_1/stream")

    assert await anext(events) == ("", {"id": "1"})
    with pytest.raises(HomeUnreachableError):
        await anext(events)
