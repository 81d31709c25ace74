"""Adds and removes the sections of MCP servers in ``config.toml``; everything else in the file stays as it is.

The file is the user's: comments, order and style are kept. A change is written only when the file then reads as it did
before, but for the servers concerned. The servers of other programs come from ``mcp.json`` of Claude Code, Cursor and
VS Code, which is only read; a text that looks like a secret goes to a file of its own in the home, mode 0600.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from soong.shared.core.config import CONFIG_FILE, Config, load_config, parse_config
from soong.shared.core.errors import ConflictError, InvalidConfigError, UsageError
from soong.shared.core.file_systems import replace_file
from soong.shared.core.program_config import OWN_ID, McpServerConfig
from soong.shared.core.secret_values import INNER_REFERENCE, WHOLE_REFERENCE
from soong.shared.sandbox.redact import redactor
from soong.shared.toolsets.mcp.catalogue import FOLDER

_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

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


def with_servers(home: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Append servers to the configuration of a home, which is made where there is none.
    Raises: UsageError, a server of that name is there already; InvalidConfigError, the result would not be valid; names
    the place.
    """
    before = load_config(home)
    taken = sorted(set(sections) & set(before.mcp.servers))
    if taken:
        raise UsageError(f"there is an MCP server {taken[0]!r} already; remove it first, or choose another name")
    text = _text(home)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    added = "\n".join(_section(name, section) for name, section in sections.items())
    changed = f"{text}{gap}{added}"
    after = parse_config(changed, str(home / CONFIG_FILE))
    _check_kept(before, after, set(sections))
    _write(home, changed)


def without_server(home: Path, name: str) -> None:
    """Remove a server's sections. Raises: UsageError, they are written in a way that this program does not edit."""
    before = load_config(home)
    kept: list[str] = []
    is_inside = False
    for line in _text(home).splitlines(keepends=True):
        header = _HEADER.fullmatch(line.rstrip("\n"))
        if header:
            words = [word.strip().strip("\"'") for word in header[1].split(".")]
            is_inside = words[:3] == ["mcp", "servers", name]
        if not is_inside:
            kept.append(line)
    changed = "".join(kept)
    try:
        after = parse_config(changed)
        _check_kept(before, after, {name})
    except (InvalidConfigError, ConflictError) as error:
        raise UsageError(f"{home / CONFIG_FILE}: remove {name!r} by hand; it is not in a section of its own") from error
    if name in after.mcp.servers:
        raise UsageError(f"{home / CONFIG_FILE}: remove {name!r} by hand; it is not in a section of its own")
    _write(home, changed)


def _check_kept(before: Config, after: Config, concerned: set[str]) -> None:
    """Hold a change to the servers that it is about. Raises: ConflictError."""
    if _without(before, concerned) != _without(after, concerned):
        raise ConflictError("the change would alter other parts of the configuration")


def _without(config: Config, names: set[str]) -> Config:
    servers = {name: server for name, server in config.mcp.servers.items() if name not in names}
    return config.model_copy(update={"mcp": config.mcp.model_copy(update={"servers": servers})})


def _text(home: Path) -> str:
    path = home / CONFIG_FILE
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _write(home: Path, text: str) -> None:
    path = home / CONFIG_FILE
    replace_file(path, text, path.stat().st_mode & 0o777 if path.exists() else 0o600)


def _section(name: str, section: Mapping[str, Any]) -> str:
    """Return a server as TOML, without fields at their default."""
    place = f"mcp.servers.{_key(name)}"
    tables: dict[str, Mapping[str, Any]] = {place: {}}
    for key, value in section.items():
        if isinstance(value, Mapping):
            tables |= {f"{place}.{key}": value} if value else {}
        elif value not in ("", [], False, None):
            tables[place] = {**tables[place], key: value}
    lines: list[str] = []
    for head, values in tables.items():
        lines += [f"[{head}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Return a text, number, truth or list of them as TOML, which has JSON's form but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


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
    """Return the servers of files as sections of our configuration, with notes on what was not taken. ``keeps``: write
    the secrets that they hold to files of the home. ``known`` are taken already.
    Raises: InvalidConfigError, a file cannot be read.
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
                section, secrets = _imported_section(name, said, home)
                McpServerConfig.model_validate(section)
            except (UsageError, ValueError) as error:
                notes.append(f"{native} of {path} is not taken: {_words(error)}")
                continue
            if keeps:
                for place, secret in secrets.items():
                    replace_file(place, secret)
            taken[name] = section
    notes += [f"there is no server {name!r} in these files" for name in sorted(set(only) - taken.keys())]
    return taken, notes


def _servers_in(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
        lines = content.decode("utf-8").splitlines()
        # VS Code allows comments on lines of their own.
        said = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise InvalidConfigError(f"{path} is not a JSON object with mcpServers or servers")
    servers = said.get("mcpServers") or said.get("servers") or {}
    if isinstance(servers, dict):
        yield from ((str(name), each) for name, each in servers.items() if isinstance(each, dict))


def _imported_section(name: str, said: Mapping[str, Any], home: Path) -> tuple[Server, dict[Path, str]]:
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


def _words(error: Exception) -> str:
    errors = getattr(error, "errors", None)
    return "; ".join(str(each["msg"]) for each in errors()) if callable(errors) else str(error)
