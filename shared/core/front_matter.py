"""Markdown files that begin with front matter: fields between two lines of ``---``, then text."""

import re
from typing import Final

from soong.shared.core.value import Value

MAX_FRONT_CHARS: Final = 16 * 1024

_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


class FrontMatter(Value):
    """``fields`` is YAML that is not read yet; its first line is line 2 of the file."""

    fields: str
    body: str


def split(text: str) -> FrontMatter | None:
    """Return the two parts of a file; None when it does not begin with front matter."""
    found = _FRONT.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    return None if found is None else FrontMatter(found[1], found.string[found.end() :].strip())
