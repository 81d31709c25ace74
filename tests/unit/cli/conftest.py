"""A home of the test's own; commands run in this process leave nothing of their options to the next test."""

from pathlib import Path

import pytest

from soong.orchestrator.terminal.console import Verbosity, choose
from soong.shared.core.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def normal_verbosity() -> None:
    choose(Verbosity.NORMAL)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return load_settings(agent_home=home)
