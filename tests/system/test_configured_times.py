"""Times of ``config.toml`` in an embedded service: in its orchestrator and its worker (EXE-08, PER-13)."""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from soong import PermissionDecision, PermissionRequest, Soong
from tests.scripted import call, calls, error_of

CONFIG = """
[permission]
timeout_s = 1

[tools]
default_timeout_ms = 300
"""
WAIT: Mapping[str, Any] = {
    "name": "team.wait",
    "description": "Waits.",
    "permission": "readonly",
    "input_schema": {"type": "object", "properties": {}},
    "command": "sleep",
    "args": ["60"],
}
PLAN: Mapping[str, Any] = {
    "title": "two that take too long",
    "steps": [
        {
            "id": "asks",
            "instructions": "x",
            "allowed_tools": ["code.write_file"],
            **calls(call("code.write_file", path="a.txt", content="x")),
        },
        {"id": "waits", "instructions": "x", "allowed_tools": ["team.wait"], **calls(call("team.wait"))},
    ],
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a home that has the file, and a tool that waits."""
    with tempfile.TemporaryDirectory(prefix="soong-times-") as path:
        home = Path(path).resolve() / "home"
        (home / "tools").mkdir(parents=True)
        (home / "config.toml").write_text(CONFIG, encoding="utf-8")
        (home / "tools" / "wait.json").write_text(json.dumps(WAIT), encoding="utf-8")
        yield home.parent


async def sleeping_person(_request: PermissionRequest) -> PermissionDecision:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.spec("EXE-08.a", "EXE-08.g", "PER-13.l")
async def test_questions_and_calls_of_a_run_have_the_times_that_the_file_gives(folder: Path) -> None:
    async with Soong.embedded(agent_home=folder / "home", workers=1) as soong:
        outcome = await soong.run(PLAN, permission_callback=sleeping_person, project=folder)

    assert error_of(outcome.outputs["asks"]) == "permission_timeout"
    assert error_of(outcome.outputs["waits"]) == "timeout"
