"""A project with ``code.run_command`` behind the whole pipeline, and programs to run in it."""

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from soong.shared.core.config import CommandsConfig
from soong.shared.core.jsontext import Json
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.result import ToolFailure, ToolResult
from soong.shared.toolsets.code.run_command import CommandTool
from tests.unit.tools.parts import PipelineHarness, make_bench


@dataclass
class Commands:
    root: Path
    outside: Path
    bench: PipelineHarness

    async def run(self, *argv: str, **more: Json) -> ToolResult:
        return await self.bench.call("code.run_command", {"argv": list(argv), **more})

    async def python(self, code: str, *argv: str, **more: Json) -> ToolResult:
        return await self.run(sys.executable, "-I", "-S", "-c", code, *argv, **more)

    async def failure(self, *argv: str, **more: Json) -> ToolFailure:
        result = await self.run(*argv, **more)
        assert result.error is not None, result
        return result.error

    def program(self, name: str, text: str = "#!/bin/sh\necho planted\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    @property
    def target(self) -> Any:
        """The target of the last question to the gate."""
        return self.bench.gate.asked[-1].target

    @property
    def progress(self) -> list[dict[str, Any]]:
        return [dict(data) for kind, data in self.bench.log.notes if kind == "tool_progress"]


def make_commands(
    folder: Path,
    *,
    runner: CommandRunner | None = None,
    config: CommandsConfig | None = None,
    redactor: Redactor | None = None,
    timeout: timedelta = timedelta(seconds=60),
    progress_every: timedelta = timedelta(seconds=1.5),
    **more: Any,
) -> Commands:
    root, outside = folder / "project", folder / "outside"
    for each in (root, outside):
        each.mkdir()
    known = redactor or Redactor()
    tool = CommandTool(
        PathPolicy(), runner or ProcessRunner(), config or CommandsConfig(), known, timeout, progress_every
    )
    return Commands(root, outside, make_bench([tool.definition()], project=root, redactor=known, **more))


def data_of(result: ToolResult) -> dict[str, Any]:
    assert isinstance(result.data, dict), result
    return result.data
