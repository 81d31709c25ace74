"""The capabilities of a worker and the needs of a step, in one vocabulary: a claim compares the two (CARD-2).

A capability is a word. Those of an operator are labels, plain words; ours have a kind before a colon. A step may be
claimed by any worker that announces all it needs, so what is needed is what a step really uses: each tool by its name,
not a program's full catalogue, which a program of another version does not have.
"""

from collections.abc import Iterable
from typing import Final

from soong.shared.core.jsontext import JsonObject, digest

PROTOCOL: Final = "protocol:"
TOOL: Final = "tool:"
FUNCTION: Final = "function:"
PROJECT: Final = "project:"
HOST: Final = "host:"
VERSION: Final = "version:"
CATALOGUE: Final = "catalogue:"

ANNOUNCED: Final = (PROTOCOL, TOOL, FUNCTION, PROJECT, HOST, VERSION, CATALOGUE)
"""Kinds that every worker announces by itself; everything else is a label."""

COMPUTED: Final = (PROTOCOL, TOOL, FUNCTION, PROJECT)
"""Kinds that a step's need is computed of; a plan may name the others."""

BUILTIN: Final = "builtin."
"""Before the names of functions that every worker has."""


def tools_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities of a worker that has these tools.

    A tool of an MCP server needs the server: its tools change while workers run, and a missing one fails its call.
    """
    return tuple(dict.fromkeys(f"{TOOL}{_of_server(name) or name}" for name in names))


def _of_server(name: str) -> str:
    """Return ``mcp.<server>.*`` for a tool of an MCP server."""
    namespace, _, rest = name.partition(".")
    server, _, tool = rest.partition(".")
    return f"{namespace}.{server}.*" if namespace == "mcp" and tool else ""


def functions_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities of a worker that has these step functions."""
    return tuple(f"{FUNCTION}{name}" for name in names if name and not name.startswith(BUILTIN))


def project_needed(id: str, path: str) -> tuple[str, ...]:
    """Return the capability of a worker that has this project at this path; none is needed of a folder without mark."""
    return (f"{PROJECT}{id}@{path}",) if id else ()


def projects_among(needs: Iterable[str]) -> tuple[str, ...]:
    """Return the projects among a step's needs."""
    return tuple(need for need in needs if need.startswith(PROJECT))


def catalogue_of(schemas: JsonObject) -> str:
    """Return the word for a full catalogue, tools with their schemas: the same in two workers that have the same."""
    return f"{CATALOGUE}{digest(schemas)[:16]}"


def declared(needs: Iterable[str]) -> tuple[str, ...]:
    """Return what a plan asked for among a step's needs."""
    return tuple(need for need in needs if not need.startswith(COMPUTED))


def announced(capabilities: Iterable[str], kind: str) -> str:
    """Return what a worker announces of a kind, such as its version; empty when it says nothing of it."""
    return next((name.removeprefix(kind) for name in capabilities if name.startswith(kind)), "")


def labels(capabilities: Iterable[str]) -> tuple[str, ...]:
    """Return what an operator gave a worker among its capabilities."""
    return tuple(name for name in capabilities if not name.startswith(ANNOUNCED))


def in_words(need: str) -> str:
    """Return a need in words for people."""
    kind, separator, name = need.partition(":")
    if not separator or f"{kind}:" not in ANNOUNCED:
        return f"the label {need!r}"
    if kind == "project":
        return f"the project at {name.partition('@')[2] or name}"
    return f"the {kind} {name}"
