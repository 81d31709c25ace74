"""The code tools on a small project, called through the whole pipeline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.result import EVERY_CALL, ErrorType, TextBlock, ToolResult
from soong.shared.toolsets.code.toolset import CodeTools
from tests.unit.tools.parts import PipelineHarness, make_bench


def declared(bench: PipelineHarness, result: ToolResult, tool: str) -> ToolResult:
    """Hold a result to its tool's declaration: whatever error any test meets, the documentation knows (REG-05)."""
    definition = bench.pipeline.resolve(tool)
    if definition is not None and result.error is not None:
        documented = {*definition.errors, *(error for errors in EVERY_CALL.values() for error in errors)}
        assert result.error.type in documented, f"{tool} does not declare {result.error}"
    return result


@dataclass
class Project:
    """A project folder with an outside beside it, and a pipeline over the code tools that allows everything."""

    root: Path
    outside: Path
    home: Path
    bench: PipelineHarness

    async def call(self, tool: str, /, **arguments: Json) -> ToolResult:
        name = tool if "." in tool else f"code.{tool}"
        return declared(self.bench, await self.bench.call(name, dict(arguments)), name)

    async def data(self, tool: str, **arguments: Json) -> dict[str, Any]:
        result = await self.call(tool, **arguments)
        assert result.error is None, result.error
        assert isinstance(result.data, dict)
        return result.data

    async def error(self, tool: str, **arguments: Json) -> ErrorType:
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        assert result.error.message
        return result.error.type

    def file(self, name: str, content: str | bytes = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    @property
    def target(self) -> Any:
        """The target of the last question to the gate."""
        return self.bench.gate.asked[-1].target


def make_project(folder: Path, **more: Any) -> Project:
    root, outside, home = folder / "project", folder / "outside", folder / "home"
    for each in (root, outside, home):
        each.mkdir()
    bench = make_bench(CodeTools(PathPolicy(home)).tools(), project=root, **more)
    return Project(root, outside, home, bench)


def text_of(result: ToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))
