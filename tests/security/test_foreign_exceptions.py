"""Whatever tools, hooks and callbacks raise is the end of their own call, never of the loop that calls them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import pytest

from soong.shared.core.foreign import ForeignError, call_foreign, contained, place_of, words_of
from soong.shared.core.jsontext import JsonObject
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreHook, PreOutcome
from soong.shared.tools.registry import Toolset
from soong.shared.tools.result import ErrorType, ToolResult
from tests.unit.tools.parts import make_bench, make_tool

T = TypeVar("T")


class PanicException(BaseException):  # as pyo3 calls it
    """What pyo3 raises for a panic in Rust."""


RAISED = [
    PanicException("index out of bounds"),
    BaseExceptionGroup("group", [PanicException("one")]),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(1),
    asyncio.CancelledError("own"),
]
IDS = [type(error).__name__ for error in RAISED]
EVERY_ONE = pytest.mark.parametrize("error", RAISED, ids=IDS)


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> NoReturn:
        raise error

    return function


async def as_in_a_worker(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a loop that is not on the main thread: only there no KeyboardInterrupt is a person's."""
    async with asyncio.timeout(20):
        return await asyncio.to_thread(asyncio.run, work())


async def called(tool: ToolDefinition, *hooks: NamedHook[PreHook]) -> ToolResult:
    bench = make_bench([tool], hooks=Hooks(hooks))
    result = await as_in_a_worker(lambda: bench.call(tool.name))
    assert bench.ended == result
    return result


def failure(result: ToolResult) -> tuple[ErrorType, str]:
    assert result.error is not None
    return result.error.type, result.error.message


@pytest.mark.spec("RES-04")
@EVERY_ONE
@pytest.mark.parametrize("interrupt", ["cancel", "block"])
@pytest.mark.parametrize("when", ["at the call", "when awaited"])
async def test_a_handler_ends_its_own_call(error: BaseException, interrupt: str, when: str) -> None:
    async def handler(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        raise error

    called_as = handler if when == "when awaited" else raising(error)

    type_, _ = failure(await called(make_tool(handler=called_as, interrupt=interrupt)))

    assert type_ is ErrorType.EXECUTION_FAILED


@pytest.mark.spec("RES-04", "REG-06")
@EVERY_ONE
async def test_a_plain_function_ends_its_own_call_and_is_named(error: BaseException) -> None:
    tools = Toolset()

    @tools.tool("team.fails")
    def fails() -> str:
        """Fail."""
        raise error

    type_, message = failure(await called(tools.tools()[0]))

    named = {SystemExit: "ExitedError", asyncio.CancelledError: "SelfCancelledError"}
    assert type_ is ErrorType.EXECUTION_FAILED
    assert message.startswith(named.get(type(error), type(error).__name__))


@pytest.mark.spec("EXE-13")
@EVERY_ONE
async def test_a_hook_denies_its_call(error: BaseException) -> None:
    async def hook(_call: HookCall) -> PreOutcome:
        raise error

    type_, message = failure(await called(make_tool(), NamedHook("checks", hook)))

    is_stop = isinstance(error, StopIteration)  # Python turns it into its own error in a coroutine
    assert type_ is ErrorType.HOOK_DENIED
    assert message == f"the hook 'checks' failed with {'RuntimeError' if is_stop else type(error).__name__}"


@pytest.mark.spec("PER-06", "SCH-03", "REG-05")
@EVERY_ONE
@pytest.mark.parametrize("part", ["target", "check_permissions", "validate_input", "traits"])
@pytest.mark.parametrize("tags", [frozenset[str](), frozenset({"filesystem"})], ids=["inline", "on a thread"])
async def test_what_a_tool_says_of_itself_is_held_to_the_unsafe_side(
    error: BaseException, part: str, tags: frozenset[str]
) -> None:
    said: dict[str, Any] = {part: raising(error)}
    bench = make_bench([make_tool(tags=tags, **said)])

    result = await as_in_a_worker(lambda: bench.call("test.echo", text="a"))

    if part == "traits":
        assert bench.gate.asked[0].traits.is_destructive
    else:
        assert result.is_error
        assert bench.log.starts == []


def test_ctrl_c_of_this_process_is_no_failure_of_what_it_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        call_foreign(raising(KeyboardInterrupt()))


def test_an_ordinary_exception_stays_what_it_is() -> None:
    error = ValueError("x")

    assert contained(error) is error
    with pytest.raises(ValueError, match="x") as caught:
        call_foreign(raising(error))
    assert caught.value.__cause__ is None


def test_the_words_of_an_exception_are_bounded_and_never_fail() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise PanicException

    deep: BaseException = ValueError("bottom")
    for _ in range(2000):
        deep = ExceptionGroup("g", [deep]) if isinstance(deep, Exception) else deep

    assert words_of(MuteError()) == "MuteError: its text cannot be read (PanicException)"
    assert words_of(ForeignError(MuteError())) == words_of(MuteError())
    assert len(words_of(ValueError("x" * 1_000_000))) == 2000
    assert words_of(deep) == "ExceptionGroup: g (1 sub-exception): ExceptionGroup: g (1 sub-exception)"


def test_the_place_of_an_exception_that_nobody_raised_is_empty() -> None:
    assert place_of(ValueError("never raised")) == ""
