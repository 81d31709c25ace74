"""The server of all wires, one for each test process."""

from collections.abc import Iterator

import pytest
from llmock.testing import LLMockServer

from soong.shared.agents.model import provider_model
from tests.wires.wire import Wires


@pytest.fixture(scope="session")
def _server() -> Iterator[LLMockServer]:
    with LLMockServer() as server:
        yield server


@pytest.fixture
def wires(_server: LLMockServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wires]:
    """Point every provider's client at the server, which has forgotten the test before."""
    _server.state.reset()
    wires = Wires(_server)
    for name, value in wires.environment.items():
        monkeypatch.setenv(name, value)
    provider_model.cache_clear()  # their clients belong to the loop of another test
    yield wires
    provider_model.cache_clear()
