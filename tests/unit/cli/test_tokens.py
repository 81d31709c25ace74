import os
import socket
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.cli.access import added_token, revoked, seconds_of
from soong.orchestrator.cli.ids import opened_store
from soong.shared.core.errors import NotFoundError, StartedByRunError, UsageError
from soong.shared.core.settings import Settings
from soong.shared.permissions.access.token import Right, read_token
from tests.model.builders import make_worker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home in which nothing has run yet."""
    return Settings(agent_home=tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_a_time_is_written_as_people_do(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "0d", "1.5h", "30 d", "1y", "99999999d", "0s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="30d"):
        seconds_of(text)


async def test_the_first_token_of_a_home_needs_no_service(settings: Settings) -> None:
    async with opened_store("make a token", makes=True, settings=settings) as store:
        token, text = await added_token(store.access, "ada", [Right.RUN], lives_s=60)

        assert await store.access.tokens() == [token]
    assert token.expires_us == token.created_us + 60_000_000
    found = read_token(text)
    assert found is not None
    assert found[0] == token.id
    assert found[1].encode() not in (settings.home / "soong.db").read_bytes()


@pytest.mark.spec("PER-13.h")
async def test_a_run_makes_no_token(settings: Settings) -> None:
    now_us = time.time_ns() // 1000
    async with opened_store(makes=True, settings=settings) as store:
        await store.sessions.register_worker(
            replace(make_worker(), host=socket.gethostname(), pid=os.getppid(), started_us=now_us)
        )

    with pytest.raises(StartedByRunError, match="cannot make a token from inside a run"):
        async with opened_store("make a token", settings=settings):
            pytest.fail("the rows are open")


async def test_a_token_is_revoked_by_its_id_or_the_end_of_it(settings: Settings) -> None:
    async with opened_store(makes=True, settings=settings) as store:
        first, _ = await added_token(store.access, "ada", [Right.READ], lives_s=None)
        second, _ = await added_token(store.access, "bob", [Right.READ], lives_s=None)

        assert await revoked(store.access, first.id)
        assert await revoked(store.access, second.id[-12:])
        assert not await revoked(store.access, first.id)

        for unknown in ("tok_unknown", "", second.id[-3:]):
            with pytest.raises(NotFoundError):
                await revoked(store.access, unknown)
