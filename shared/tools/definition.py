"""The definition of a tool from any source (REG-01, REG-05).

Owns the values that describe a tool and the context its handler is given. Leaves lookup to the registry, the order
of a call to the pipeline and the OS boundary to :mod:`soong.shared.sandbox`.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.hosts import EgressPolicy
from soong.shared.sandbox.paths import is_below, write_roots
from soong.shared.tools.result import ArtifactRef, ErrorType, ToolResult

NAMESPACE_TAGS: Final = frozenset({"code", "agent", "internal", "mcp"})
"""The tags of tools in our own namespaces; facts about our own tools are bound to these."""


METHOD: Final = "elicitation/create"
CANCEL: Final = "cancel"
"""A person's no that begins with this word closes the question without a choice."""

ElicitationAction: TypeAlias = Literal["accept", "decline", "cancel"]


class Permission(StrEnum):
    """Outside effects and project changes only: writing core state (nodes, tasks, steps) is readonly."""

    READONLY = "readonly"
    WRITE = "write"


class Risk(IntEnum):
    """How bad a wrong yes would be. Ordered: a classifier or a trait may raise it, nothing lowers it (PER-11)."""

    READ = 0
    WRITE = 1
    EXECUTE = 2
    CRITICAL = 3


class Traits(Value):
    """The traits of one call, as a function of its input. The defaults are the unsafe side: fail closed."""

    is_read_only: bool = False
    is_concurrency_safe: bool = False
    is_destructive: bool = False
    is_open_world: bool = False


class Target(Value):
    """The target of a call.

    ``scope`` is the normalised resource a session grant is remembered by (a resolved directory, a host, an executable
    with its cwd); empty when the tool has none, and then no session grant is offered (PER-08). ``shown`` is the exact
    thing, for people: the resolved path, the argv. ``precondition`` describes the target's state when it was shown
    ("absent", or inode, size and hash) and is checked again before the effect. ``is_inside_roots`` is False for a write
    outside the session's write roots; ``is_sensitive`` marks sensitive reads (FS-06). ``preview`` shows the effect to a
    person (a diff, a size).
    """

    kind: Literal["path", "command", "host", "resource", "none"] = "none"
    scope: str = ""
    shown: str = ""
    host: str = ""
    is_inside_roots: bool = True
    is_sensitive: bool = False
    precondition: str = ""
    preview: str = ""


class Withheld(Value):
    """A file or folder, or everything (``/``), that a rule of the session keeps from ``tools``.

    ``is_asked``: a person is asked about a call of one of them that names it; otherwise such a call is refused.
    """

    path: Path
    tools: frozenset[str]
    is_asked: bool


class RunDirs(Value):
    """The folders of a run. All absolute and resolved.

    ``project`` is what is worked on, ``cwd`` where relative paths and commands start, ``run_dir`` the run's own folder
    with ``workspace/`` and ``deliverables/``. Writes inside ``write_roots`` are inside the roots (FS-07).
    ``writable_by_rule`` are files and folders elsewhere that an allow rule of the session lets its runs write.
    ``read_roots`` are other folders that are read without being asked (FS-06).
    ``withheld`` is what a read that comes from above may not show.
    """

    project: Path
    cwd: Path
    run_dir: Path
    write_roots: tuple[Path, ...] = ()
    writable_by_rule: tuple[Path, ...] = ()
    read_roots: tuple[Path, ...] = ()
    withheld: tuple[Withheld, ...] = ()


def access_of(
    place: RunDirs, *, can_write: bool, has_network: bool = False, more: Iterable[Path] = ()
) -> CommandAccess:
    """Return the access of a program of a run.

    It reads the project, the run's own folder, the read roots and ``more``, but for what a deny rule keeps from
    ``code.read_file``. With ``can_write`` it writes the write roots and what an allow rule opens.
    """
    roots = (*write_roots(place), *place.writable_by_rule)
    readable = (place.project, place.run_dir, *place.read_roots, *more, *(() if can_write else roots))
    return CommandAccess(
        readable=_resolved(readable),
        writable=_resolved(roots) if can_write else (),
        hidden=tuple(_withheld(place)),
        has_network=has_network,
    )


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))


def _withheld(place: RunDirs) -> Iterable[Path]:
    for one in place.withheld:
        # A rule about everything, or about more than the project, means calls: a program needs its own folder.
        if not one.is_asked and "code.read_file" in one.tools and not is_below(place.project, one.path):
            yield one.path


class Progress:
    """The receiver of a running tool's progress (EXE-09); this one drops it."""

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        del message, data


class CallQuestion(Value):
    """A question to a person by a call under way: under a name of its own, for rules, and bound to its own input."""

    name: str
    input: JsonObject
    target: Target


class CallAnswer(Value):
    """``reason`` are the person's words with the answer; without a person, why there is none."""

    is_accepted: bool
    reason: str = ""
    is_person: bool = False


class ElicitationAnswer(Value):
    """The answer to the server. ``content`` are the values of its form, by field; None for a page and for a refusal.

    ``cancel``: the question was closed without a choice; the call continues as after ``decline``.
    """

    action: ElicitationAction
    content: JsonObject | None = None
    reason: str = ""


class AroundQuestion:
    """The user's hooks around what a server asks a person during a call (MCP-01.m); here there are none."""

    async def before(self, question: CallQuestion, /) -> ElicitationAnswer | None:
        """Return the answer in the person's place; None: the person is to be asked."""
        del question
        return None

    async def after(self, question: CallQuestion, answer: ElicitationAnswer, /) -> ElicitationAnswer:
        """Return the answer as the server is to get it."""
        del question
        return answer


async def _nobody(question: CallQuestion) -> CallAnswer:
    del question
    return CallAnswer(is_accepted=False, reason="nobody can be asked here")


NO_PROGRESS: Final = Progress()
"""The progress of a call that never begins, or that has no follower."""


async def _keep_nothing(data: bytes, media_type: str, name: str) -> ArtifactRef | None:
    del data, media_type, name
    return None


class ToolContext(Value):
    """All that a handler may know of its call. ``effect_id`` is stable over a crash and resume (DAG-09).

    A handler that is cut off (timeout, abort) may hand over what it has got so far: ``keep_partial`` takes all of
    it as text, also while the cancellation passes through; the last hand-over counts (EXE-07, EXE-08).
    """

    identity: RunIdentity
    run_dirs: RunDirs
    tool_call_id: str
    effect_id: str
    fence: int
    progress: Progress
    precondition: str = ""
    allowed_outside: bool = False
    """The permission for this very target has been given although it is sensitive or outside the roots."""
    target: Target = msgspec.field(default_factory=Target)
    """The target that was computed, shown and permitted; the effect is on ``target.shown`` and on nothing else."""
    keep_partial: Callable[[str], None] = lambda _partial: None
    egress: EgressPolicy | None = None
    """The hosts that the call may connect to, by its session's policy; None: none."""
    store_artifact: Callable[[bytes, str, str], Awaitable[ArtifactRef | None]] = _keep_nothing
    """Stores bytes under a media type and a name, for data that is not text; None if nothing is stored."""
    ask: Callable[[CallQuestion], Awaitable[CallAnswer]] = _nobody
    """Asks the session's callback while the handler runs; its time limit is suspended meanwhile."""
    around_question: AroundQuestion = AroundQuestion()
    """The user's hooks around a server's questions."""


HandlerOutput: TypeAlias = "ToolResult | Json"
Handler: TypeAlias = Callable[[ToolContext, JsonObject], Awaitable[HandlerOutput]]


class ToolDefinition(Value):
    """One registered tool. Schemas are JSON Schema in the core subset (:mod:`soong.shared.tools.schema`).

    ``traits`` and ``call_tags`` may raise a call above its definition and never lower it. ``target`` computes what a
    call touches; it may read the file system and must not change it. ``validate_input`` returns a message or None after
    the schema held. ``check_permissions`` may tighten: "deny" or "ask"; None leaves it to the policy. ``metadata``
    keeps a source's own facts, its schema as ``native_schema`` among them.
    """

    name: str
    description: str
    input_schema: JsonObject
    handler: Handler
    permission: Permission = Permission.WRITE
    tags: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    title: str = ""
    prompt: str = ""
    search_hint: str = ""
    output_schema: JsonObject | None = None
    max_result_chars: int | None = None
    timeout: timedelta | None = None
    interrupt: Literal["cancel", "block"] = "cancel"
    is_agent_tool: bool = False
    """create_sub_agent, fork_agent, dispatch_worker: a concurrency class of their own (EXE-03)."""
    keeps_full_output: bool = False
    """code.read_file: paged by itself, never turned into an artifact (RES-03)."""
    open_world: bool | None = None
    """Whether its calls reach what we do not control; None takes the safe value (:attr:`reaches_out`)."""
    defer: bool = False
    always_load: bool = False
    is_enabled: Callable[[], bool] = lambda: True
    traits: Callable[[JsonObject], Traits] | None = None
    call_tags: Callable[[JsonObject], frozenset[str]] | None = None
    """More tags of one call, by its input: a tool that works on several systems has those of the one that is named."""
    target: Callable[[ToolContext, JsonObject], Target] | None = None
    validate_input: Callable[[JsonObject], str | None] | None = None
    check_permissions: Callable[[ToolContext, JsonObject], Literal["ask", "deny"] | None] | None = None
    metadata: Mapping[str, Json] = msgspec.field(default_factory=dict)
    errors: tuple[ErrorType, ...] = ()
    """How its calls may end, besides what any call may, for callers."""

    def traits_of(self, call_input: JsonObject) -> Traits:
        """Return the traits of one call: permission=readonly declares read-only and concurrency-safe."""
        if self.traits is not None:
            return self.traits(call_input)
        is_readonly = self.permission is Permission.READONLY
        return Traits(is_read_only=is_readonly, is_concurrency_safe=is_readonly, is_open_world=self.reaches_out)

    @property
    def reaches_out(self) -> bool:
        """Whether every call counts as open-world: declared, by tag, or because nothing at all is declared."""
        if "network" in self.tags:
            return True
        if self.open_world is not None:
            return self.open_world
        has_words = frozenset(self.tags) - {permission.value for permission in Permission}
        declares_nothing = self.permission is Permission.WRITE and not (has_words or self.traits or self.target)
        return "mcp" in self.tags or declares_nothing


class ToolAdapter(Protocol):
    """A source of tools (REG-01): code, MCP, agent, task and declarative tools each come through one."""

    def tools(self) -> tuple[ToolDefinition, ...]: ...


def shaped(definition: ToolDefinition) -> ToolDefinition:
    """Return the definition with its permission as one, also where its name was written.
    Raises: InvalidToolError, names the first wrong field and the expected form.
    """
    problem = next(iter(_problems(definition)), "")
    if problem:
        raise InvalidToolError(str(definition.name), problem)
    permission: object = definition.permission
    if isinstance(permission, Permission):
        return definition
    return replace(definition, permission=Permission(str(permission)))


def _problems(tool: ToolDefinition) -> Iterator[str]:
    for names, is_sound, problem in _SOUND:
        yield from (f"its {name} {problem}" for name in names if not is_sound(getattr(tool, name)))
    words = [each.value for each in Permission]
    if tool.permission not in words:
        yield f"its permission is {str(tool.permission)[:40]!r}; it is one of {', '.join(words)}"
    if tool.interrupt not in ("cancel", "block"):
        yield f"its interrupt is {str(tool.interrupt)[:40]!r}; it is cancel or block"
    if not _is_count(tool.max_result_chars):
        yield "max_result_chars must be at least 1"


def _are(values: object, kind: tuple[type, ...], item: type) -> bool:
    return isinstance(values, Iterable) and isinstance(values, kind) and all(isinstance(each, item) for each in values)


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


_SOUND: Final[tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...]] = (
    (("description", "title", "prompt", "search_hint"), lambda value: isinstance(value, str), "is not a text"),
    (
        ("is_agent_tool", "keeps_full_output", "defer", "always_load"),
        lambda value: isinstance(value, bool),
        "is neither True nor False",
    ),
    (("handler", "is_enabled"), callable, "is not a function"),
    (
        ("traits", "call_tags", "target", "validate_input", "check_permissions"),
        lambda value: value is None or callable(value),
        "is not a function",
    ),
    (
        ("tags",),
        lambda value: _are(value, (frozenset, set), str),
        "are not a set of texts; write frozenset({'network'})",
    ),
    (("aliases",), lambda value: _are(value, (tuple, list), str), "are not a tuple of texts; write ('other_name',)"),
    (("errors",), lambda value: _are(value, (tuple, list), ErrorType), "are not a tuple of ErrorType"),
    (("metadata",), lambda value: isinstance(value, Mapping), "is not an object"),
    (
        ("timeout",),
        lambda value: value is None or isinstance(value, timedelta),
        "is not a timedelta; write timedelta(seconds=20)",
    ),
    (("open_world",), lambda value: value is None or isinstance(value, bool), "is neither True, False nor None"),
)
"""Fields, the conditions on their values, and the errors: a foreign tool's types are not believed."""


def question_tool(server: str) -> str:
    return f"mcp.{server}.{METHOD}"


def asks_for_words(tool: str) -> bool:
    """Say whether a question has this name because a server asks it."""
    return tool.startswith("mcp.") and tool.endswith(f".{METHOD}")
