"""A rule of a policy: its effect, calls, reach and author; its text forms; grants (PER-04, PER-08, REG-08).

:mod:`soong.shared.permissions.policy` picks the deciding rule. Rules name a scope, calls have a target; everything is
compared in resolved form, and no file system is touched for it: tools resolve their targets, the reader of a command
line its rules. One fact is of the run: one that has used or been given strangers' words is tainted, and stays so
(PER-21). Text from files, pages, servers and programs may speak to the model. No filter separates it from data, so
outward calls of such a run are asked for again: earlier grants were for a run that had not read it.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from msgspec import Meta

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json, is_told_apart
from soong.shared.core.value import Value
from soong.shared.permissions.request import Decision, PermissionRequest
from soong.shared.sandbox.hosts import HostRefusedError, is_host_within, normal_host
from soong.shared.tools.definition import Permission, Risk, Target, ToolDefinition
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ToolResult

MAX_GRANT_CHARS: Final = 4_000
"""A session grant that is longer is not offered: a person could not read what it covers."""
_UNREADABLE: Final = "\ufffd"
"""Stands for what could not be read, which differs from name to name."""


class ScopeKind(StrEnum):
    """How a scope contains: a path by its components, a host by its labels, anything else by equality."""

    PATH = "path"
    HOST = "host"
    EXACT = "exact"


class Scope(Value):
    """The limit of a rule. Paths are absolute and resolved; ``*.example.org`` is any host below example.org."""

    kind: ScopeKind
    value: str

    def covers(self, target: Target) -> bool:
        """Say whether all that the target touches lies in this scope."""
        if self.kind is ScopeKind.PATH:
            return target.kind == "path" and any(is_within(path, self.value) for path in _paths_of(target))
        if self.kind is ScopeKind.HOST:
            return bool(target.host) and is_host_within(target.host, self.value)
        return target.kind != "path" and self.value in {target.scope, target.shown} - {""}

    def names(self, target: Target) -> bool:
        """Say whether this scope is the very target, not something around it."""
        if self.kind is ScopeKind.PATH:
            return target.kind == "path" and self.value in _paths_of(target)[-1:]
        return self.covers(target)

    def __str__(self) -> str:
        return self.value if self.kind is ScopeKind.PATH else f"{self.kind}:{self.value}"


def is_within(path: str, folder: str) -> bool:
    """Say whether ``path`` is ``folder`` or below it, by components: ``/a/bc`` is not within ``/a/b``. Both must be
    absolute and in normal form; a path with ``..`` in it is within nothing.
    """
    if not (is_normal(path) and is_normal(folder)):
        return False
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))


def is_normal(path: str) -> bool:
    """Say whether a path is absolute and has no ``.``, ``..``, doubled or trailing slash in it."""
    # normpath keeps exactly two leading slashes (POSIX leaves their meaning open).
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path


def offered_scope(target: Target, home: str) -> str:
    """Return what a session grant would cover, or nothing when none may be offered (PER-08).

    Never for a target without a scope, for ``/``, for a home or a folder that contains one, nor for a pattern; nor for
    one that a person could take for another. It is the target's own scope, character by character: two targets share a
    grant only if their scopes are equal.
    """
    scope = target.scope
    if not scope or "*" in scope or not _is_told_apart(scope):
        return ""
    if target.kind == "path" and not is_normal(scope):
        return ""
    # A resource or command scope that is a whole disk or home is as wide as a folder's.
    return "" if is_normal(scope) and is_too_wide(scope, home) else scope


def is_too_wide(folder: str, home: str) -> bool:
    """Say whether a folder is the entire file system, a home (anybody's), or contains one."""
    parts = PurePosixPath(folder).parts
    is_some_home = parts == ("/", "root") or (len(parts) <= 3 and parts[1:2] in {("home",), ("Users",)})
    return folder == "/" or is_some_home or (is_normal(home) and is_within(home, folder))


def _paths_of(target: Target) -> list[str]:
    """Return the target's folder and, where it is named exactly, the thing itself; the most exact last."""
    return [path for path in (target.scope, target.shown) if is_normal(path)]


def _is_told_apart(scope: str) -> bool:
    """Say whether a scope looks like no other on a screen: no blank at its ends, nothing invisible, no control."""
    is_read = is_told_apart(scope) and _UNREADABLE not in scope and len(scope) <= MAX_GRANT_CHARS
    return is_read and scope == scope.strip()


class Grant(Value):
    """An allow_for_session decision: this tool, on exactly this scope. ``decision_id`` names where it comes from."""

    tool: str
    scope: str
    principal: str
    decision_id: str


@dataclass(slots=True)
class GrantBook:
    """The grants of one session under one ownership. Dies with its owner: a successor asks again."""

    _grants: dict[tuple[str, str], Grant] = field(default_factory=dict)

    def add(self, grant: Grant) -> None:
        """Remember a grant; the first for a tool and scope counts.
        Raises: ValueError, a grant without a tool or scope would cover everything.
        """
        if not grant.tool or not grant.scope:
            raise ValueError(f"a grant needs a tool and a scope, not {grant!r}")
        self._grants.setdefault((grant.tool, grant.scope), grant)

    def remember(self, decision: Decision) -> None:
        if decision.choice.is_grant:
            self.add(Grant(decision.tool, decision.scope, decision.principal, decision.id))

    def covering(self, request: PermissionRequest) -> Grant | None:
        return self.find(request.tool, request.scope)

    def find(self, tool: str, scope: str) -> Grant | None:
        return self._grants.get((tool, scope))

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants.values())

    def __len__(self) -> int:
        return len(self._grants)


AS_NOW: Final = "now"
"""The scope of an allow rule for tools of MCP servers: each as it is defined when the rule is given."""


class Effect(StrEnum):
    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class CallFacts(Value):
    """The facts of a call for a policy, from the call itself or from its permission request.

    Two are of the run rather than of the call: ``is_tainted``, it has read what strangers wrote (PER-21), and ``step``,
    the key of the step that it works on, from its row; empty for a run without one.
    """

    tool: str
    tags: frozenset[str]
    is_read: bool
    is_dangerous: bool
    is_open_world: bool
    risk: Risk
    target: Target
    hook_asks: bool = False
    is_tainted: bool = False
    step: str = ""

    @classmethod
    def of(cls, call: GateCall) -> "CallFacts":
        """Read a call. Its traits raise it above its definition and never lower it (REG-05)."""
        tags = call.definition.tags
        return cls(
            tool=call.definition.name,
            tags=tags,
            is_read=call.permission is Permission.READONLY and call.traits.is_read_only,
            is_dangerous="dangerous" in tags or call.traits.is_destructive,
            is_open_world="network" in tags or call.traits.is_open_world,
            risk=call.risk,
            target=call.target,
            hook_asks=call.hook_result == "ask",
            step=call.identity.step_key,
        )

    @property
    def is_outward(self) -> bool:
        """Say whether the call may carry something out: it reaches the network, or a host that it names."""
        return self.is_open_world or "network" in self.tags or bool(self.target.host)


class Rule(Value, forbid_unknown_fields=True):
    """A rule of a policy. It matches a call whose canonical name matches ``pattern``, that has all ``tags``, and whose
    target lies in ``scope``; no scope means anywhere. ``source`` names its author. With a ``step`` (its key) it matches
    only that step's own calls and, for a map step, its children's (PER-17).
    """

    effect: Effect
    pattern: Annotated[str, Meta(min_length=1)]
    tags: frozenset[str] = frozenset()
    scope: Scope | None = None
    source: str = "config"
    step: Annotated[str, Meta(min_length=1)] = ""

    def matches(self, facts: CallFacts) -> bool:
        return (
            (not self.step or is_of_step(facts.step, self.step))
            and fnmatchcase(facts.tool, self.pattern)
            and self.tags <= facts.tags
            and (self.scope is None or self.scope.covers(facts.target))
        )

    def is_about(self, tool: ToolDefinition) -> bool:
        """Say whether the rule may match a call of a tool, by its name and tags."""
        return fnmatchcase(tool.name, self.pattern) and self.tags <= tool.tags

    def __str__(self) -> str:
        tags = f"[{','.join(sorted(self.tags))}]" if self.tags else ""
        whose = f" for step {self.step}" if self.step else ""
        return f"{self.effect} {self.pattern}{tags}" + (f":{self.scope}" if self.scope else "") + whose

    def as_json(self) -> dict[str, Json]:
        fields = {**super().as_json(), "tags": sorted(self.tags)}
        return fields if self.step else {name: value for name, value in fields.items() if name != "step"}


def is_of_step(step: str, wanted: str) -> bool:
    """Say whether a step's key is the wanted one, or that of a child of that map step (``task/review[a]``)."""
    return bool(wanted) and (step == wanted or (step.startswith(f"{wanted}[") and step.endswith("]")))


def parse_allow(
    text: str,
    *,
    source: str = "--allow",
    readonly_tools: Collection[str] = (),
    tools: Collection[str] | None = None,
    home: str = "",
) -> Rule:
    """Read ``tool:scope`` as an allow rule.

    ``tool`` may be a pattern (``code.*``). ``scope`` is an absolute folder or file, ``host:example.org`` or
    ``exact:<the tool's own scope>``; :func:`written_out` reads ``now``. It may be left out only for a tool of
    ``readonly_tools``. It is taken character by character: a blank at its end would name another folder.
    ``tools`` are the tools that exist: the pattern must match one of them; None: they are not known here. The own tools
    of a registered agent are known by its runs alone: ``AGENT.TOOL:exact:AGENT``.
    Raises: UsageError, says what is wrong and what to write.
    """
    pattern, separator, wanted = text.lstrip().partition(":")
    if not any(char.isalnum() for char in pattern):
        raise UsageError(f"{source} {text!r}: name a tool, for example code.write_file:/absolute/folder")
    of_agent = wanted.startswith("exact:") and pattern.startswith(f"{wanted.removeprefix('exact:')}.")
    if tools is not None and not of_agent and not any(fnmatchcase(name, pattern) for name in tools):
        near = get_close_matches(pattern, tools, 1)
        hint = f"did you mean {near[0]!r}?" if near else "`soong tools list` shows the tools"
        raise UsageError(f"{source} {text!r}: there is no tool {pattern!r}; {hint}")
    if not separator and pattern in readonly_tools:
        return Rule(Effect.ALLOW, pattern, source=source)
    if pattern.startswith("mcp.") and not wanted.startswith(("exact:", "host:")):
        how = f"write {pattern}:{AS_NOW}, or exact: and a scope that `soong mcp show NAME` prints"
        raise UsageError(f"{source} {text!r}: a tool of an MCP server is allowed as it is defined now; {how}")
    if not wanted.strip():
        raise UsageError(f"{source} {text!r}: say for what, for example {pattern}:/absolute/folder")
    scope = read_scope(wanted, f"{source} {text!r}", home=home, is_grant=True)
    return Rule(Effect.ALLOW, pattern, scope=scope, source=source)


def allow_rules(allow: Iterable[str], tools: Sequence[ToolDefinition], others: Collection[str] = ()) -> list[Rule]:
    """Read allow rules on these tools, and on ``others`` that are known by name alone. Raises: UsageError."""
    readonly = [tool.name for tool in tools if tool.permission is Permission.READONLY]
    names = [*(tool.name for tool in tools), *others]
    return [parse_allow(text, readonly_tools=readonly, tools=names) for text in written_out(allow, tools)]


def written_out(allow: Iterable[str], tools: Sequence[ToolDefinition]) -> Iterator[str]:
    """Yield allow rules; ``mcp.PATTERN:now`` becomes one for each tool of MCP servers, as it is defined now."""
    for text in allow:
        pattern, _, wanted = text.strip().partition(":")
        is_short = pattern.startswith("mcp.") and wanted == AS_NOW
        found = [tool for tool in tools if fnmatchcase(tool.name, pattern) and "definition" in tool.metadata]
        if is_short and found:
            yield from (f"{tool.name}:exact:{tool.name}@{tool.metadata['definition']}" for tool in found)
        else:
            yield text


def read_scope(wanted: str, place: str, *, home: str = "", is_grant: bool) -> Scope:
    """Read the text form of a scope. One that grants something is held to PER-08: never everything, never a home.
    Raises: UsageError, begins with ``place``; says what is wrong and what to write.
    """
    if wanted != wanted.strip():
        raise UsageError(f"{place}: the scope {wanted!r} begins or ends with a blank; write it without")
    if "*" in wanted.removeprefix("host:*."):
        raise UsageError(f"{place}: a scope is one folder, file or host, not a pattern; write it out")
    for kind in (ScopeKind.HOST, ScopeKind.EXACT):
        prefix = f"{kind}:"
        if wanted.startswith(prefix):
            value = wanted[len(prefix) :]
            if not value.strip() or value == "*.":
                raise UsageError(f"{place}: nothing after {prefix!r}")
            return Scope(kind, read_host(value, place) if kind is ScopeKind.HOST else value)
    folder = read_folder(wanted, place, home=home, is_grant=is_grant, or_else=", host:NAME or exact:TEXT")
    return Scope(ScopeKind.PATH, folder)


def read_host(value: str, place: str) -> str:
    """Return a host, or ``*.`` and the domain that hosts lie below, as hosts are compared.
    Raises: UsageError, it is not a host.
    """
    below = "*." if value.startswith("*.") else ""
    try:
        return below + normal_host(value.removeprefix("*."))
    except HostRefusedError as error:
        raise UsageError(f"{place}: {error}; write a host name such as example.org or *.example.org") from error


def read_folder(wanted: str, place: str, *, home: str = "", is_grant: bool, or_else: str = "") -> str:
    """Return an absolute, resolved folder or file; ``or_else`` is what could have been written instead of one.
    Raises: UsageError, it is relative, or too wide for something that grants.
    """
    own_home = home or str(Path.home())
    expanded = own_home + wanted[1:] if wanted == "~" or wanted.startswith("~/") else wanted
    if not expanded.startswith("/") or "\0" in expanded:
        hint = f"write {str(Path.cwd() / wanted)!r}{or_else}"
        raise UsageError(f"{place}: {wanted!r} is not an absolute path; {hint}")
    # Targets are resolved, so the rule is too; a link put there later leads out of the rule, not along with it.
    folder = str(Path(os.path.realpath(expanded)))
    if is_grant and (is_too_wide(folder, os.path.realpath(own_home)) or not is_normal(folder)):
        raise UsageError(
            f"{place}: {folder!r} is too wide (the file system, a home, or a folder around it); name a folder inside"
        )
    return folder


_ALWAYS: Final = frozenset({"mcp", "network", "declarative", "dangerous"})
_OURS: Final = frozenset({"internal", "agent"})

METADATA_KEY: Final = "reads_untrusted"
"""``metadata[METADATA_KEY] = True`` marks a tool, or one result, that its tags would not; nothing unmarks one."""
DESCRIPTION_KEY: Final = "is_described_by_stranger"
"""``metadata[DESCRIPTION_KEY] = True`` marks a tool whose description taints each run that is given the tool."""


def reads_untrusted(definition: ToolDefinition) -> bool:
    """Say whether the output of a tool may hold what strangers wrote.

    Tools over our own state do not (tag ``internal``, or ``agent``: the store taints the parent of a tainted child),
    nor do the code tools that write, which report their own effect. All other tools do, and a program or a server
    always.
    """
    if definition.metadata.get(METADATA_KEY) is True or definition.tags & _ALWAYS:
        return True
    if definition.tags & _OURS:
        return False
    return not ("code" in definition.tags and definition.permission is Permission.WRITE)


def describes_untrusted(tools: Iterable[ToolDefinition]) -> bool:
    """Say whether a run that is given these tools reads in their descriptions what strangers wrote."""
    return any(tool.metadata.get(DESCRIPTION_KEY) is True for tool in tools)


def brings_untrusted(result: ToolResult) -> bool:
    """Say whether a result holds what strangers wrote although its tool need not: a memory of a tainted run."""
    return result.metadata.get(METADATA_KEY) is True
