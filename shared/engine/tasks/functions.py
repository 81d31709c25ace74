"""Functions that ``python`` steps call, by name.

A function takes the step's inputs and a :class:`StepContext` and returns JSON. Workers import the modules named by
``SOONG_FUNCTIONS``; importing registers. A plain function runs on a thread, a coroutine function on a thread and an
event loop of its own; a *cheap* one (no I/O, microseconds) is called on the worker's loop, without a thread hop. An
isolated one is called in a process of its own.

A scripted agent (DIS-13) runs in place of a model: an async function of the step's inputs and an :class:`AgentHandle`.
Its tool calls are the run's. It is run again from its start when its run continues in another process, and is given
the recorded results, so it must be deterministic.
"""

import ast
import asyncio
import hashlib
import inspect
import io
import logging
import re
import textwrap
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias, TypeVar

from soong.shared.core.errors import InvalidConfigError, NotFoundError, ToolCallError, UsageError
from soong.shared.core.foreign import origin_of, shown
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.problems import Unknown, near


class RunFiles(Protocol):
    """Hands files of a run on, and reads those that others handed on."""

    def keep(self, path: Path, title: str) -> JsonObject:
        """Store a file and return the reference. Blocks. Raises: UsageError, SoongError, OSError."""

    def read(self, digest: str) -> bytes:
        """Return the bytes of that SHA-256. Blocks. Raises: NotFoundError, SoongError."""


class NoFiles(Value):
    """Implements :class:`RunFiles` for a context without a store, such as that of a cheap function."""

    def keep(self, path: Path, title: str) -> JsonObject:
        raise UsageError(f"{path.name!r} of {title!r} is not handed on: {_CHEAP}")

    def read(self, digest: str) -> bytes:
        raise UsageError(f"the artifact {digest!r} is not opened: {_CHEAP}")


class StepContext(Value):
    """The run that calls the function, and the number of its attempt, from 1 on.

    ``effect_key`` is the same for every attempt and resume of the step. ``folder`` is the run's own folder: relative
    paths and temporary files of the function begin there, and it is kept if the function leaves something in it. A
    cheap function works in the folder of its worker; for it, ``folder`` is not made. ``project`` is the project folder
    of the session, which exists on workers that have the project.
    """

    UNSHOWN = frozenset({"files"})

    identity: RunIdentity
    attempt: int = 1
    effect_key: str = ""
    folder: Path = Path()
    project: Path = Path()
    files: RunFiles = NoFiles()

    @staticmethod
    def current() -> "StepContext":
        """Return that of the step function which calls this. Raises: UsageError, none does."""
        context = _CURRENT.get()
        if context is None:
            raise UsageError(
                "no step runs here; StepContext.current() is for step functions; a test has the fixture step_context"
            )
        return context

    @property
    def log(self) -> logging.Logger:
        """The logger ``step``: its records of every level are lines of the run."""
        return _STEP_LOG

    def artifact(self, path: str | Path, title: str = "") -> JsonObject:
        """Store a file of the folder and return the reference to it, a value that other steps read.

        The reference is ``{"artifact": id, "name": …, "size": bytes, "sha256": …}``. The stored copy has no secrets.
        Raises: UsageError, it is not a regular file, has more than 64 MiB, or the function is a cheap one; SoongError,
        it cannot be stored.
        """
        return self.files.keep(self.folder / path, title)

    def open(self, artifact: JsonObject | str) -> BinaryIO:
        """Open the bytes of a reference, or of an artifact's id, for reading; on whichever machine it was stored.

        Raises: UsageError, it is not a reference; NotFoundError, no such artifact is stored.
        """
        digest = artifact.get("artifact") if isinstance(artifact, Mapping) else artifact
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            words = 'expected what `context.artifact` returned, such as {"artifact": "<64 hexadecimal digits>"}'
            raise UsageError(f"not a reference to an artifact: {shown(artifact)}; {words}")
        return io.BytesIO(self.files.read(digest))


_CHEAP: Final = "cheap functions, agents and the fixture step_context have no files; use a step without `cheap=True`"
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_STEP_LOG: Final = logging.getLogger("step")
_STEP_LOG.setLevel(logging.DEBUG)


_CURRENT: Final[ContextVar[StepContext | None]] = ContextVar("soong_step", default=None)


@contextmanager
def in_context(context: StepContext) -> Iterator[None]:
    """Let a function know the run that calls it."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


StepFunctionBody: TypeAlias = Callable[[JsonObject, StepContext], Json | Awaitable[Json]]
Isolation = Literal["thread", "process"]
_Body = TypeVar("_Body", bound=StepFunctionBody)


class StepFunction(Value):
    """A registered function; a cheap one runs on the event loop of its worker."""

    name: str
    body: StepFunctionBody
    is_async: bool
    is_cheap: bool = False
    isolation: Isolation = "thread"
    version: str = ""
    """That of the file that defines it; empty where there is none."""


_FUNCTIONS: dict[str, StepFunction] = {}


def step_function(name: str, *, cheap: bool = False, isolation: Isolation = "thread") -> Callable[[_Body], _Body]:
    """Register the decorated function under ``name``.

    With ``isolation="process"`` each call has a process of its own, which ends with the step; a step can say otherwise.
    Raises: InvalidConfigError, the name is taken by another function, or one that is not cheap is called so.
    """

    def register(body: _Body) -> _Body:
        is_async = inspect.iscoroutinefunction(body)
        known = _FUNCTIONS.get(name)
        if known is not None and origin_of(known.body) != origin_of(body):
            origins = f"{origin_of(known.body)}, {origin_of(body)}"
            raise InvalidConfigError(f"two step functions are called {name!r}: {origins}")
        if is_async and cheap:
            raise InvalidConfigError(
                f"the step function {name!r} is a coroutine function; only plain ones can be cheap"
            )
        if cheap and isolation == "process":
            raise InvalidConfigError(f"the step function {name!r} has a process for each call, so it is not cheap")
        _FUNCTIONS[name] = StepFunction(name, body, is_async, cheap, isolation, _version_of(body))
        return body

    return register


def _version_of(body: object) -> str:
    code = getattr(inspect.unwrap(body), "__code__", None)  # type: ignore[arg-type]  # any callable
    return "" if code is None else _version_of_file(code.co_filename)


@lru_cache(maxsize=1024)
def _version_of_file(file: str) -> str:
    """Return the digest of a source file as it was imported."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def resolve(name: str) -> StepFunction:
    """Return the function of that name. Raises: NotFoundError."""
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise NotFoundError("step function", name) from None


def known_functions() -> Mapping[str, StepFunction]:
    """Return what is registered in this process now."""
    return dict(_FUNCTIONS)


def versions_of(names: Collection[str]) -> dict[str, str]:
    """Return the versions of those of these functions that are registered in this process, by name."""
    known = {name: _FUNCTIONS[name].version for name in names if name in _FUNCTIONS and not name.startswith("builtin.")}
    return {name: version for name, version in known.items() if version}


def nearest(word: str, known: Collection[str]) -> str:
    """Return a question for the known word that is meant, to precede something else; nothing when none is near."""
    close = near(word, known)
    return f"did you mean {close!r}? " if close else ""


def suggestion(word: str, known: Collection[str]) -> str:
    """Return the hint for a word that is none of the known ones."""
    return Unknown(word, known).text()


@step_function("builtin.echo", cheap=True)
def _echo(inputs: JsonObject, _context: StepContext) -> Json:
    """Return the inputs."""
    return inputs


@step_function("builtin.given", cheap=True)
def _given(inputs: JsonObject, _context: StepContext) -> Json:
    """Return the input ``output``: how a fork has the result of a step that does not run again."""
    return inputs.get("output")


@step_function("builtin.fail", cheap=True)
def _fail(inputs: JsonObject, context: StepContext) -> Json:
    """Raise, with the text ``message``; with ``times``, only in that many first attempts."""
    times = inputs.get("times")
    if isinstance(times, int) and context.attempt > times:
        return inputs
    raise RuntimeError(str(inputs.get("message", "builtin.fail was called")))


@step_function("builtin.sleep")
async def _sleep(inputs: JsonObject, _context: StepContext) -> Json:
    """Wait ``seconds`` and return the inputs."""
    seconds = inputs.get("seconds", 1.0)
    await asyncio.sleep(float(seconds) if isinstance(seconds, int | float) else 1.0)
    return inputs


class AgentHandle(Protocol):
    """The run as its function sees it. ``project`` and ``cwd`` are folders; relative paths start at ``cwd``."""

    @property
    def project(self) -> str: ...

    @property
    def cwd(self) -> str: ...

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its data, or its content where it has no data. None stands for no argument.

        Calls that are awaited at once (``asyncio.gather``) are one turn and run side by side where the tools allow it.
        Raises: ToolCallError, the call failed or was denied.
        """


ScriptBody: TypeAlias = Callable[[dict[str, Any], AgentHandle], Awaitable[Any]]
_Script = TypeVar("_Script", bound=ScriptBody)


class ScriptedAgent(Value):
    """A registered agent that is a function; a cheap one runs on the event loop of its worker.

    Some are cheap with some inputs only: ``is_cheap`` then judges the inputs.
    """

    name: str
    body: ScriptBody
    is_cheap: bool | Callable[[Mapping[str, Any]], bool] = False


_SCRIPTS: dict[str, ScriptedAgent] = {}


def scripted_agent(
    name: str, *, cheap: bool | Callable[[Mapping[str, Any]], bool] = False
) -> Callable[[_Script], _Script]:
    """Register the decorated coroutine function under ``name``, which a step's ``script`` then names.

    A function runs on a thread. A *cheap* one needs microseconds between its calls and makes one call at a time: it
    runs on the worker's event loop, without the change of threads, and can await nothing but ``agent.call``. If that
    depends on the inputs, ``cheap`` is a function of them.
    Raises: InvalidConfigError, the name is taken by another function, or the function is not a coroutine function.
    """

    def register(body: _Script) -> _Script:
        is_async = inspect.iscoroutinefunction(body)
        if not is_async:
            raise InvalidConfigError(f"the scripted agent {name!r} is a plain function; define it with `async def`")
        known = _SCRIPTS.get(name)
        if known is not None and origin_of(known.body) != origin_of(body):
            raise InvalidConfigError(
                f"two scripted agents are called {name!r}: {origin_of(known.body)}, {origin_of(body)}"
            )
        # A worker announces both kinds of functions by one word (soong.shared.engine.wire.notifier).
        if name in known_functions() and not name.startswith("builtin."):
            raise InvalidConfigError(f"the scripted agent {name!r} has the name of a step function; rename one")
        _SCRIPTS[name] = ScriptedAgent(name, body, cheap)
        return body

    return register


def resolve_script(name: str) -> ScriptedAgent:
    """Return the scripted agent of that name. Raises: NotFoundError."""
    try:
        return _SCRIPTS[name]
    except KeyError:
        raise NotFoundError("scripted agent", name, Unknown(name, known_scripts(), after=WHERE).text()) from None


def known_scripts() -> Mapping[str, ScriptedAgent]:
    """Return what is registered in this process now."""
    return dict(_SCRIPTS)


Deps: TypeAlias = Callable[[JsonObject, StepContext], Any]


class RegisteredAgent(Value):
    """An agent of another library that steps name as ``python:NAME`` (:mod:`soong.shared.agents.own.registration`)."""

    name: str
    agent: Any
    deps: Deps | None = None
    readonly: frozenset[str] = frozenset()
    origin: str = ""
    """File and line that registered it."""


_AGENTS: dict[str, RegisteredAgent] = {}


def keep_agent(registered: RegisteredAgent) -> None:
    """Keep an agent under its name. Raises: InvalidConfigError, another one has the name."""
    known = _AGENTS.get(registered.name)
    if known is not None and known.agent is not registered.agent and known.origin != registered.origin:
        origins = f"{known.origin}, {registered.origin}"
        raise InvalidConfigError(f"two agents are registered as {registered.name!r}: {origins}; rename one")
    _AGENTS[registered.name] = registered


def resolve_agent(name: str) -> RegisteredAgent:
    """Return the registered agent of that name. Raises: NotFoundError."""
    try:
        return _AGENTS[name]
    except KeyError:
        raise NotFoundError("registered agent", name, Unknown(name, _AGENTS, after=WHERE_AGENTS).text()) from None


def known_agents() -> Mapping[str, RegisteredAgent]:
    """Return what is registered in this process now."""
    return dict(_AGENTS)


def called_tools(body: ScriptBody) -> tuple[str, ...]:
    """Return the tools that the source of a scripted agent calls by name; none where there is no source to read."""
    try:
        tree, (_, agent) = ast.parse(textwrap.dedent(inspect.getsource(body))), inspect.signature(body).parameters
    except (OSError, TypeError, ValueError, SyntaxError):
        return ()
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return tuple(
        name.value
        for name, function in ((call.args[0], call.func) for call in calls)
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
        if isinstance(function, ast.Attribute) and function.attr == "call"
        if isinstance(function.value, ast.Name) and function.value.id == agent
    )


WHERE: Final = "; modules that register scripted agents are named by SOONG_FUNCTIONS or by the plan's `modules`"
WHERE_AGENTS: Final = "; modules that make a step of an agent are named by SOONG_FUNCTIONS or by the plan's `modules`"


@scripted_agent("builtin.echo", cheap=True)
async def _scripted_echo(inputs: dict[str, Any], _agent: AgentHandle) -> Any:
    """Return the inputs."""
    return inputs


def _is_one_by_one(inputs: Mapping[str, Any]) -> bool:
    return inputs.get("at_once") is not True


@scripted_agent("builtin.calls", cheap=_is_one_by_one)
async def _calls(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Make the listed calls, each ``{call, with}``; return ``output`` if it is given, else the results in their order.

    A call that fails does not end it: ``error`` is then the type of the first one's error. ``at_once`` makes all calls
    in one turn.
    """

    async def made(call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            value = await agent.call(call["call"], **call.get("with", {}))
        except ToolCallError as error:
            return {"is_error": True, "error": {"type": error.type, "message": error.text}, "value": error.data}
        return {"is_error": False, "error": None, "value": value}

    calls = inputs.get("calls", ())
    one_by_one = _is_one_by_one(inputs)
    results = [await made(call) for call in calls] if one_by_one else await asyncio.gather(*map(made, calls))
    errors = [one["error"]["type"] for one in results if one["is_error"]]
    return inputs.get("output", {"results": results, "error": errors[0] if errors else ""})
