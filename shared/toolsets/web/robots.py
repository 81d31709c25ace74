"""What a site's robots.txt says of one URL (RFC 9309). Pure.

The standard library's reader knows no wildcards, and takes the first rule that fits in place of the longest one.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

ROBOTS_PATH: Final = "/robots.txt"
MAX_ROBOTS_BYTES: Final = 512 * 1024
MAX_RULES: Final = 1_000
"""Of an agent that are heeded, in the order of the file."""
_MAX_LINES: Final = 10_000
_MAX_PATTERN_CHARS: Final = 2_048

_Rule = tuple[str, str]


def is_allowed(content: bytes, agent: str, url: str) -> bool:
    """Say whether an agent may fetch a URL; the rules of its own group count, else those for all."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if path == ROBOTS_PATH:
        return True
    rules = _rules(content.decode("utf-8-sig", "replace"), agent.lower())
    fitting = [(len(pattern), word == "allow") for word, pattern in rules if _fits(pattern, path)]
    return max(fitting, default=(0, True))[1]


def _rules(text: str, agent: str) -> Iterable[_Rule]:
    """Return the rules of the agent's own groups, else of those for all: each once, in work linear in the text."""
    found: dict[str, dict[_Rule, None]] = {}
    named: set[str] = set()
    is_in_rules = False
    for word, value in _lines(text):
        if word == "user-agent":
            named, is_in_rules = (set() if is_in_rules else named), False
            if (name := value.partition("/")[0].strip().lower()) in (agent, "*"):
                named.add(name)
                found.setdefault(name, {})
        elif word in ("allow", "disallow"):
            is_in_rules = True
            for name in named if value else ():
                if len(found[name]) < MAX_RULES:
                    found[name][word, value[:_MAX_PATTERN_CHARS]] = None
    return found.get(agent, found.get("*", ()))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines()[:_MAX_LINES]:
        word, colon, value = line.partition("#")[0].partition(":")
        if colon:
            yield word.strip().lower(), value.strip()


def _fits(pattern: str, path: str) -> bool:
    """Say whether a path begins as a pattern says: ``*`` is any text, ``$`` at the end the end of the path.

    The pieces between stars are looked for one after another, each at the first place: no pattern takes long.
    """
    is_whole = pattern.endswith("$")
    first, *pieces = re.split(r"\*+", pattern.removesuffix("$"))
    if not path.startswith(first):
        return False
    at = len(first)
    for piece in pieces[:-1] if is_whole and pieces else pieces:
        found = path.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    if not is_whole:
        return True
    return path.endswith(pieces[-1]) and len(path) - len(pieces[-1]) >= at if pieces else at == len(path)
