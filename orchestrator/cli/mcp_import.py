"""Reads the MCP servers of other programs: ``mcp.json`` of Claude Code, Cursor and VS Code. Their files are only read.

A text that looks like a secret goes to a file of its own in the home, mode 0600, and the configuration refers to it.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.mcp_config import INNER_REFERENCE, OWN_ID, WHOLE_REFERENCE, McpServerConfig
from soong.shared.sandbox.redact import redactor
from soong.shared.toolsets.mcp.catalogue import FOLDER

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
SECRETS: Final = "secrets"
PLACES: Final = (
    ".claude.json",
    ".cursor/mcp.json",
    ".config/Code/User/mcp.json",
    "Library/Application Support/Code/User/mcp.json",
)
_SECRET_NAME: Final = re.compile(r"token|secret|password|passwd|api_?key|apikey|auth|credential|private", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_FOREIGN: Final = re.compile(r"\$\{(?!env:|file:)[^}]*\}")
_ODD: Final = re.compile(r"[^a-z0-9_-]+")

Server = dict[str, Any]


def found_files(user_home: Path) -> list[Path]:
    """Return the user's own files that there are; one in a project is taken only when it is named."""
    return [path for place in PLACES if (path := user_home / place).is_file()]


def looks_secret(name: str, value: str) -> bool:
    """Say whether a value of ``env`` or ``headers`` is a secret in plain sight."""
    if not value or WHOLE_REFERENCE.fullmatch(value) or INNER_REFERENCE.search(value):
        return False
    return bool(_SECRET_NAME.search(name)) or redactor().text(value) != value


def imported_servers(
    files: Sequence[Path], home: Path, known: Collection[str], only: Collection[str], *, keeps: bool
) -> tuple[dict[str, Server], list[str]]:
    """Return the servers of files as sections of our configuration, with notes on what was not taken.

    ``keeps``: write the secrets that they hold to files of the home. ``known`` are taken already.

    Raises:
        InvalidConfigError: a file cannot be read.
    """
    taken: dict[str, Server] = {}
    notes: list[str] = []
    for path in files:
        for native, said in _servers_in(path):
            name = _ODD.sub("-", native.lower()).strip("-")[:32]
            if only and native not in only and name not in only:
                continue
            if name in known or name in taken or name == OWN_ID:
                notes.append(f"{native} of {path}: there is a server {name!r} already")
                continue
            try:
                section, secrets = _section(name, said, home)
                McpServerConfig.model_validate(section)
            except (UsageError, ValueError) as error:
                notes.append(f"{native} of {path} is not taken: {_words(error)}")
                continue
            if keeps:
                for place, secret in secrets.items():
                    _keep(place, secret)
            taken[name] = section
    notes += [f"there is no server {name!r} in these files" for name in sorted(set(only) - _names(taken))]
    return taken, notes


def _names(taken: Mapping[str, Server]) -> set[str]:
    return set(taken)


def _servers_in(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
        said = json.loads(_without_comments(content.decode("utf-8")))
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise InvalidConfigError(f"{path} is not a JSON object with mcpServers or servers")
    servers = said.get("mcpServers") or said.get("servers") or {}
    if isinstance(servers, dict):
        yield from ((str(name), each) for name, each in servers.items() if isinstance(each, dict))


def _section(name: str, said: Mapping[str, Any], home: Path) -> tuple[Server, dict[Path, str]]:
    """Return one server as a section, and the secrets that it refers to by file. Raises: UsageError."""
    secrets: dict[Path, str] = {}
    folder = home / FOLDER / SECRETS

    def referred(values: object, kind: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in values.items() if isinstance(values, dict) else ():
            text = _VARIABLE.sub(lambda match: f"${{env:{match[1]}}}", str(value))
            if _FOREIGN.search(text):
                raise UsageError(f"{kind} {key} needs {_FOREIGN.search(text)[0]}, which only its program knows")  # type: ignore[index]
            if looks_secret(str(key), text):
                place = folder / f"{name}.{re.sub(r'[^A-Za-z0-9_-]', '_', str(key))}"
                secrets[place] = text
                text = f"file:{place}"
            found[str(key)] = text
        return found

    section: Server = {}
    if said.get("url"):
        section = {"url": str(said["url"]), "headers": referred(said.get("headers"), "header")}
        if said.get("type") == "sse":
            raise UsageError("it speaks the old SSE transport, which is not supported; name its streamable HTTP URL")
    elif said.get("command"):
        words = [str(each) for each in said.get("args") or ()]
        odd = next((word for word in words if _FOREIGN.search(word) or _VARIABLE.search(word)), None)
        if odd is not None:
            raise UsageError(f"its argument {odd!r} holds a variable; write the argument out in config.toml")
        section = {"command": str(said["command"]), "args": words, "env": referred(said.get("env"), "env")}
    if said.get("disabled") is True:
        section["enabled"] = False
    return section, secrets


def _keep(place: Path, secret: str) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret)


def _without_comments(text: str) -> str:
    """Return JSON without the comments that VS Code allows on lines of their own."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))


def _words(error: Exception) -> str:
    errors = getattr(error, "errors", None)
    return "; ".join(str(each["msg"]) for each in errors()) if callable(errors) else str(error)
