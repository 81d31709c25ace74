"""Tokens of the API: their times, and that a person alone makes and revokes them."""

import os
import socket
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.cli.access import seconds_of
from soong.orchestrator.operations.administration import all_tokens, make_api_token, opened_store, revoke_token
from soong.shared.core.errors import NotFoundError, StartedByRunError, UsageError
from soong.shared.permissions.access.token import Right, read_token
from tests.model.builders import make_worker


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing has run yet."""
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SOONG_DATABASE_URL", raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_a_time_is_written_as_people_do(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "0d", "1.5h", "30 d", "1y", "99999999d", "0s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="30d"):
        seconds_of(text)


async def test_the_first_token_of_a_home_needs_no_service(home: Path) -> None:
    token, text = await make_api_token("ada", [Right.RUN], lives_s=60)

    assert [one["id"] for one in await all_tokens()] == [token.id]
    assert token.expires_us == token.created_us + 60_000_000
    found = read_token(text)
    assert found is not None
    assert found[0] == token.id
    assert found[1].encode() not in (home / "soong.db").read_bytes()


@pytest.mark.spec("PER-13.h")
@pytest.mark.usefixtures("home")
async def test_a_run_makes_no_token() -> None:
    now_us = time.time_ns() // 1000
    async with opened_store(makes=True) as store:
        await store.sessions.register_worker(
            replace(make_worker(), host=socket.gethostname(), pid=os.getppid(), started_us=now_us)
        )

    with pytest.raises(StartedByRunError, match="cannot make a token from inside a run"):
        await make_api_token("ada", [Right.RUN], lives_s=60)
    assert await all_tokens() == []


@pytest.mark.usefixtures("home")
async def test_a_token_is_revoked_by_its_id_or_the_end_of_it() -> None:
    first, second = [(await make_api_token(name, [Right.READ], lives_s=None))[0] for name in ("ada", "bob")]

    assert await revoke_token(first.id)
    assert await revoke_token(second.id[-12:])
    assert not await revoke_token(first.id)
    for unknown in ("tok_unknown", "", second.id[-3:]):
        with pytest.raises(NotFoundError):
            await revoke_token(unknown)
