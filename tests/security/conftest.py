from pathlib import Path

import pytest

from tests.security.scene import SecurityHarness, make_scene
from tests.unit.toolsets.parts import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@pytest.fixture
def scene(tmp_path: Path) -> SecurityHarness:
    return make_scene(tmp_path)
