"""``soong audit`` and ``soong keys`` over the rows of a home, called as a person does."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from soong.orchestrator.cli.access import audit, keys, since_us
from soong.shared.core.errors import UsageError
from soong.shared.permissions.audit_log import AuditKind, AuditNote
from soong.shared.permissions.signing import Signer
from soong.shared.storage.sql.store import open_store
from tests.model.builders import make_session

RUNNER = CliRunner()
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which a session was opened and two things happened."""
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path))
    monkeypatch.delenv("SOONG_DATABASE_URL", raising=False)

    async def fill() -> None:
        store = await open_store(f"sqlite:///{tmp_path / 'soong.db'}", migrate=True)
        await store.sessions.open_session(make_session(id="sess_a"))
        for number in range(2):
            note = AuditNote(AuditKind.SECURITY, {"what": "late_answer", "number": number}, "sess_a")
            await store.audit.note([note], now_us=round(NOW.timestamp() * 1_000_000) + number)
        await store.close()

    asyncio.run(fill())
    return tmp_path


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = RUNNER.invoke(audit, ["export", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = RUNNER.invoke(audit, ["verify", "--json", *arguments], catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)


def tamper(home: Path, statement: str, values: Sequence[object] = ()) -> None:
    with sqlite3.connect(home / "soong.db") as database:
        assert database.execute(statement, values).rowcount > 0


def test_the_export_is_a_line_an_entry_oldest_first(home: Path) -> None:
    kinds = [line["kind"] for line in lines()]

    assert kinds == ["session_opened", "security", "security"]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--kind", "security"], 2),
        (["--kind", "answer"], 0),
        (["--kind", "answer", "--kind", "session_opened"], 1),
        (["--session", "sess_a"], 3),
        (["--session", "sess_b"], 0),
        (["--since", "2026-11-21T08:00:00.000001Z"], 1),
        (["--since", "2026-11-21T09:00+01:00", "--kind", "security"], 2),
    ],
    ids=["a kind", "another kind", "two kinds", "a session", "another session", "since", "since, in another zone"],
)
def test_the_export_is_of_what_was_asked_for(home: Path, arguments: list[str], count: int) -> None:
    assert len(lines(*arguments)) == count


def test_a_kind_that_is_none_is_named_with_those_that_are(home: Path) -> None:
    with pytest.raises(UsageError, match=r"no kind 'nothing'; kinds are session_opened, answer"):
        RUNNER.invoke(audit, ["export", "--kind", "nothing"], catch_exceptions=False)


@pytest.mark.parametrize(("text", "ago_s"), [("90m", 5400), ("2h", 7200), ("7d", 604_800), ("30s", 30)])
def test_since_may_be_so_long_ago(text: str, ago_s: int) -> None:
    assert since_us(text, NOW) == round((NOW.timestamp() - ago_s) * 1_000_000)


@pytest.mark.parametrize("text", ["yesterday", "2h30m", "-1h", "2026-13-01"])
def test_a_since_that_is_no_time_says_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="2026-11-21T08:00Z"):
        since_us(text, NOW)


def test_a_log_that_nobody_touched_holds_and_gives_what_to_note(home: Path) -> None:
    code, found = verify()

    assert (code, found["holds"], found["entries"], found["problems"]) == (0, True, 3, [])
    heads = found["heads"]
    assert isinstance(heads, dict)
    assert verify("--expect-digest", *heads.values())[0] == 0


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit SET data = '{\"what\":\"nothing\"}' WHERE kind = 'security' AND number = 2", "it was changed"),
        ("DELETE FROM audit WHERE number = 2", "is gone"),
    ],
    ids=["another content", "one taken away"],
)
def test_the_first_broken_entry_is_named(home: Path, statement: str, problem: str) -> None:
    tamper(home, statement)

    code, found = verify()

    assert (code, found["holds"]) == (1, False)
    (told,) = found["problems"]
    assert problem in told


def test_an_end_that_was_cut_off_shows_by_a_digest_that_was_noted(home: Path) -> None:
    _, found = verify()
    (noted,) = found["heads"].values()
    tamper(home, "DELETE FROM audit WHERE number = 3")

    assert verify()[0] == 0, "nothing else can show it"
    code, found = verify("--expect-digest", noted)

    assert code == 1
    assert found["problems"] == [f"the entry {noted} that was noted is not there any more"]


def listed() -> list[dict[str, object]]:
    done = RUNNER.invoke(keys, ["list", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_key_is_rotated_listed_and_ended(home: Path) -> None:
    assert listed() == []

    adopted = RUNNER.invoke(keys, ["adopt", "--reason", "a second host"], catch_exceptions=False)
    assert [(key["id"], key["state"], key["signs_here"]) for key in listed()] == [
        (adopted.stdout.strip(), "active", True)
    ]
    assert [line["data"]["reason"] for line in lines("--kind", "key_published")] == ["a second host"]

    made = RUNNER.invoke(keys, ["rotate", "--overlap", "0", "--reason", "new year"], catch_exceptions=False)
    old, new = listed()

    assert (old["state"], old["signs_here"], new["state"], new["signs_here"]) == ("retired", False, "active", True)
    assert made.stdout.strip() == new["id"]
    assert [line["data"]["reason"] for line in lines("--kind", "key_retired")] == ["new year"]

    ended = RUNNER.invoke(keys, ["retire", str(new["id"]), "--revoke"], catch_exceptions=False)

    assert ended.exit_code == 0
    assert [key["state"] for key in listed()] == ["retired", "revoked", "active"]
    assert listed()[2]["signs_here"]
    assert "key_" in RUNNER.invoke(keys, ["list"], catch_exceptions=False).stdout


def test_a_key_that_is_not_there_or_not_one_is_not_ended(home: Path) -> None:
    for _ in range(2):
        RUNNER.invoke(keys, ["rotate"], catch_exceptions=False)

    with pytest.raises(UsageError, match="fits 2 keys"):
        RUNNER.invoke(keys, ["retire", "key_"], catch_exceptions=False)
    with pytest.raises(UsageError, match="no key 'key_none'"):
        RUNNER.invoke(keys, ["retire", "key_none"], catch_exceptions=False)


@pytest.mark.spec("OPS-12")
def test_rotating_away_a_key_that_was_never_published_says_what_to_look_at(home: Path) -> None:
    RUNNER.invoke(keys, ["adopt"], catch_exceptions=False)
    theirs = Signer.generate()
    theirs.save(home / "signing.key")

    done = RUNNER.invoke(keys, ["rotate"], catch_exceptions=False)

    assert theirs.key_id not in {key["id"] for key in listed()}
    assert f"the file held {theirs.key_id}, which was never published" in done.stderr
    assert "soong keys retire KEY" in done.stderr
