"""Hooks in Python are registered by importing their module, as step functions are."""

from datetime import timedelta

import pytest

from soong.shared.core.errors import InvalidConfigError
from soong.shared.tools.hooks.hook import HookCall, PostOutcome, PreOutcome, post_hook, pre_hook
from soong.shared.tools.result import ToolResult


@pre_hook("test.before", tools="nothing.*", tags=("mcp",), timeout=timedelta(seconds=2))
async def before(_call: HookCall) -> PreOutcome:
    return PreOutcome()


@post_hook("test.after", tools="nothing.*")
async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
    return PostOutcome()


@pytest.mark.spec("EXE-13")
def test_the_same_hook_may_be_registered_again_and_another_may_not() -> None:
    async def other(_call: HookCall) -> PreOutcome:
        return PreOutcome()

    pre_hook("test.before", tools="nothing.*", tags=("mcp",), timeout=timedelta(seconds=2))(before)
    with pytest.raises(InvalidConfigError, match=r"two hooks are called 'test\.before'"):
        pre_hook("test.before")(other)
    with pytest.raises(InvalidConfigError, match=r"two hooks are called 'test\.after'"):
        pre_hook("test.after")(other)


def test_a_plain_function_is_no_hook() -> None:
    def plain(_call: HookCall) -> PreOutcome:
        return PreOutcome()

    with pytest.raises(InvalidConfigError, match="async def"):
        pre_hook("test.plain")(plain)  # type: ignore[type-var]  # what a user may write
