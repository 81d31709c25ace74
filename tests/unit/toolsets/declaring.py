"""Command tools that are declared in a home of their own and called through the whole pipeline."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soong.shared.core.config import Config
from soong.shared.core.jsontext import Json
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import Target, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.toolsets.declarative.running import DeclarativeTools
from tests.unit.tools.parts import PipelineHarness, make_bench

ANY_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "more": {"type": "string"}, "number": {"type": "integer"}},
}
SAY_ARGUMENTS = "import json, sys; print(json.dumps({'data': sys.argv[1:]}))"
"""A program that answers with its own arguments."""


@dataclass
class Declared:
    """A home with definition files, a project beside it, and the means to call what is declared."""

    home: Path
    project: Path
    config: Config = field(default_factory=Config)
    options: dict[str, Any] = field(default_factory=dict)
    bench: PipelineHarness | None = None
    redactor: Redactor = field(default_factory=Redactor)
    """Knows the secrets of the process, for the tools and the pipeline."""

    def write(self, name: str = "team.tool", **fields: Any) -> Path:
        """Declare a tool; what is not said is a harmless default."""
        document = {"name": name, "description": "A tool.", "input_schema": ANY_TEXT, "command": "true", **fields}
        path = self.home / "tools" / f"{name}.json"
        path.write_text(json.dumps(document))
        path.chmod(0o644)
        return path

    def python(self, code: str, *args: str, **fields: Any) -> None:
        """Declare a tool that is a Python program."""
        self.write(command=sys.executable, args=["-I", "-c", code, *args], **fields)

    def sh(self, line: str, *args: str, **fields: Any) -> None:
        """Declare a tool that is a shell line."""
        self.write(command_type="shell", command=line, args=list(args), **fields)

    def tools(self) -> tuple[ToolDefinition, ...]:
        return DeclarativeTools(self.home, ProcessRunner(), self.config, PathPolicy(), self.redactor).tools()

    def made_bench(self) -> PipelineHarness:
        """Return a new pipeline over the tools; it is :attr:`bench` from now on."""
        self.bench = make_bench(self.tools(), project=self.project, redactor=self.redactor, **self.options)
        return self.bench

    async def call(self, **arguments: Json) -> ToolResult:
        return await self.made_bench().call("team.tool", arguments)

    async def data(self, **arguments: Json) -> Any:
        result = await self.call(**arguments)
        assert result.error is None, result.error
        return result.data

    async def error(self, **arguments: Json) -> tuple[ErrorType, str]:
        result = await self.call(**arguments)
        assert result.error is not None, result
        return result.error.type, result.error.message

    @property
    def stored(self) -> list[bytes]:
        """The artifacts of the last call."""
        assert self.bench is not None
        return self.bench.artifacts.stored

    @property
    def target(self) -> Target:
        """The target of the last question to the gate."""
        assert self.bench is not None
        return self.bench.gate.asked[-1].target


def make_declared(folder: Path, **more: Any) -> Declared:
    home, project = folder / "home", folder / "project"
    (home / "tools").mkdir(parents=True)
    (home / "tools").chmod(0o755)
    project.mkdir()
    return Declared(home, project, **more)
