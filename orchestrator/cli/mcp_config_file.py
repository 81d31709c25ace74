"""Adds and removes the sections of MCP servers in ``config.toml``; everything else in the file stays as it is.

The file is the user's: comments, order and style are kept. A change is written only when the file then reads as it did
before, but for the servers concerned.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from soong.shared.core.config import CONFIG_FILE, Config, load_config, parse_config
from soong.shared.core.errors import ConflictError, InvalidConfigError, UsageError

_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def with_servers(home: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Append servers to the configuration of a home, which is made where there is none.

    Raises:
        UsageError: a server of that name is there already.
        InvalidConfigError: what would be written is not valid; names the place.
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
    """Remove a server's sections.

    Raises:
        UsageError: they are written in a way that this program does not edit.
    """
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
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor, temporary = tempfile.mkstemp(prefix=f".{CONFIG_FILE}.", dir=home)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _section(name: str, section: Mapping[str, Any]) -> str:
    """Return a server as TOML; what has its default is left out."""
    lines = [f"[mcp.servers.{_key(name)}]"]
    for key, value in section.items():
        if value not in ("", [], {}, False, None):
            lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)
