"""The declarative tools of a home as one source (REG-07, CMD-02)."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, InvalidToolError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.programs import untrusted_folders
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import HandlerOutput, Target, ToolContext, ToolDefinition
from soong.shared.tools.docs import EVERY_CALL
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.named_files import named_files
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool
from soong.shared.toolsets.declarative.folder import read_tool_files
from soong.shared.toolsets.declarative.invocation import Invocation, hold_to_permission, invocation, target_of
from soong.shared.toolsets.declarative.protocol import CLAIMABLE
from soong.shared.toolsets.declarative.running import access_of_tool, run_tool

_OF_EVERY_CALL: Final = {each for types in EVERY_CALL.values() for each in types}
_ERRORS: Final = tuple(
    sorted((CLAIMABLE | {ErrorType.PATH_OUTSIDE_ROOTS, ErrorType.SHELL_NOT_ALLOWED}) - _OF_EVERY_CALL)
)


class DeclarativeTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over the files of a home; one broken file breaks the start.

    Starting without it would leave a run without a tool that its user counts on, without notice.
    """

    home: Path
    runner: CommandRunner
    config: Config = msgspec.field(default_factory=Config)
    paths: PathPolicy = msgspec.field(default_factory=PathPolicy)
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    max_timeout: timedelta = MAX_TIMEOUT

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Read the files again each time.

        Raises:
            InvalidConfigError: names every broken file, the field and what to do.
        """
        bounds = Bounds.of(self.config, self.max_timeout)
        files = read_tool_files(self.home, bounds)
        if files.problems:
            raise InvalidConfigError("\n".join(map(str, files.problems)))
        surroundings = bounds, self.config, self.runner, self.paths, self.redactor
        return tuple(command_tool(tool, *surroundings) for tool in files.tools)

    def register(self, registry: ToolRegistry) -> None:
        """Register the tools, each with its file as its source.

        Raises:
            InvalidConfigError: as :meth:`tools`, or a name is taken by a tool from elsewhere.
        """
        for definition in self.tools():
            origin = str(definition.metadata["origin"])
            try:
                registry.register(definition, source=f"file {origin}")
            except InvalidToolError as error:
                raise InvalidConfigError(f"{origin}: {error.problem}") from error


def command_tool(
    tool: DeclaredTool,
    bounds: Bounds,
    config: Config,
    runner: CommandRunner,
    paths: PathPolicy,
    redactor: Redactor,
) -> ToolDefinition:
    """Return the registered form of one definition."""

    def made(context: ToolContext, call_input: JsonObject) -> Invocation:
        return invocation(tool, bounds, config, context.run_dirs, call_input)

    def target_of_made(context: ToolContext, call_input: JsonObject, now: Invocation) -> Target:
        files = named_files(now.argv, now.cwd, untrusted_folders(context.run_dirs), paths.is_sensitive)
        target = target_of(tool, now, call_input, files)
        confinement = runner.confinement(access_of_tool(tool, now.cwd, context.run_dirs))
        return replace(target, preview=f"{target.preview}\nsandbox: {confinement}") if confinement else target

    def target(context: ToolContext, call_input: JsonObject) -> Target:
        return target_of_made(context, call_input, made(context, call_input))

    def check_permissions(context: ToolContext, call_input: JsonObject) -> Literal["ask"] | None:
        # What a run can write and then run by a tool that never asks would be code without consent.
        return "ask" if made(context, call_input).is_own_to_run else None

    async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        now = made(context, call_input)
        hold_to_permission(context, await asyncio.to_thread(target_of_made, context, call_input, now))
        return await run_tool(tool, now, context, call_input, runner, bounds, redactor)

    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        handler=handle,
        permission=tool.permission,
        tags=tool.tags,
        timeout=tool.timeout,
        is_enabled=lambda: config.tools.shell or not tool.is_shell,
        target=target,
        check_permissions=check_permissions,
        errors=_ERRORS,
        metadata={"origin": tool.origin, "command_type": "shell" if tool.is_shell else "exec"},
    )
