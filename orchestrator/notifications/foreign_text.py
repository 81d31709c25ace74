"""Text of others in a message: one inert line, without secrets, in which no address can be clicked.

Titles, names and reasons come from models, plans and workers. A message is read outside of Soong, by a person who
trusts its sender: nothing in it may imitate one of our lines, a header, or a link of ours.
"""

import re
from typing import Final

from soong.shared.core.inert import inert

MAX_CHARS: Final = 120
_LINKED: Final = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*):(?=//)|\b(mailto|tel|javascript|data):|\b(www)\.")


def one_line(text: str, limit: int = MAX_CHARS) -> str:
    """Return text as one line of visible characters, cut, with its addresses broken (``https[:]//``)."""
    line = inert(" ".join(text[: 8 * limit].split()))
    line = _LINKED.sub(lambda found: f"{found[3]}[.]" if found[3] else f"{found[1] or found[2]}[:]", line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
