"""Hooks that are real small programs, and a pipeline around them."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soong.shared.core.config import CommandsConfig, HookConfig, HooksConfig
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.result import ErrorType
from tests.unit.tools.parts import PipelineHarness, make_bench, make_tool

PYTHON = str(Path(sys.executable).resolve())

_HEAD = """\
import json, os, sys
told = json.load(sys.stdin)
answer = lambda **fields: print(json.dumps(fields))
"""


@dataclass
class Programs:
    """A home with hook programs, a project beside it, and the configuration that names the programs."""

    root: Path
    pre: list[HookConfig] = field(default_factory=list)
    post: list[HookConfig] = field(default_factory=list)
    elicitation: list[HookConfig] = field(default_factory=list)
    elicitation_result: list[HookConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in (self.home, self.project):
            folder.mkdir(exist_ok=True)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def project(self) -> Path:
        return self.root / "project"

    def python(self, body: str, name: str = "check", *, stage: str = "pre", **more: Any) -> Path:
        """Add a hook that is a Python program; ``told`` is the document it reads, ``answer`` writes one."""
        return self._add([PYTHON, "-I"], _HEAD + body, name, stage, more)

    def sh(self, body: str, name: str = "check", *, stage: str = "pre", **more: Any) -> Path:
        """Add a hook that is a shell script."""
        return self._add(["sh"], body, name, stage, more)

    def _add(self, command: list[str], text: str, name: str, stage: str, more: dict[str, Any]) -> Path:
        script = self.home / f"{name}.script"
        script.write_text(text, encoding="utf-8")
        hook = HookConfig(name=name, command=(*command, str(script)), **more)
        hooks: list[HookConfig] = getattr(self, stage)
        hooks.append(hook)
        return script

    def hooks(self, redactor: Redactor | None = None, commands: CommandsConfig | None = None) -> Hooks:
        config = HooksConfig(
            pre=tuple(self.pre),
            post=tuple(self.post),
            elicitation=tuple(self.elicitation),
            elicitation_result=tuple(self.elicitation_result),
        )
        return hooks_of(config, ProcessRunner(), home=self.home, commands=commands, redactor=redactor)

    def bench(self, tool: ToolDefinition | None = None, *, redactor: Redactor | None = None) -> PipelineHarness:
        tools = [tool or make_tool()]
        return make_bench(tools, project=self.project, hooks=self.hooks(redactor), redactor=redactor or Redactor())


def hook_runs(bench: PipelineHarness) -> list[dict[str, Any]]:
    """Return the events of hooks."""
    return [dict(data) for kind, data in bench.log.notes if kind == "hook_run"]


async def denied(bench: PipelineHarness) -> str:
    """Return why a hook denied a call that nobody was asked about and that did not start."""
    result = await bench.call("test.echo", text="x")
    assert result.error is not None
    assert result.error.type is ErrorType.HOOK_DENIED
    assert (bench.gate.asked, bench.log.starts) == ([], [])
    return result.error.message
