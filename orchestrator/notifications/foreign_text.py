"""Text of others in a message: one inert line, without secrets, in which no address can be clicked.

Titles, names and reasons come from models, plans and workers. A message is read outside of Soong, by a person who
trusts its sender: nothing in it may imitate one of our lines, a header, or a link of ours.
"""

import re
from typing import Final

from soong.shared.core.inert import inert

MAX_CHARS: Final = 120
_SCHEME: Final = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,30}):(?=//)|\b(mailto|tel|sms|geo|facetime|javascript|data):")
_HOST_DOT: Final = re.compile(
    # Between a label and the shape of a top-level domain, in any script, or in an address of four numbers.
    r"(?<=[^\W_])[.\u3002\uff0e\uff61](?=[^\W\d_]{2,63}(?!\w)|xn--)|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w)"
)


def one_line(text: str, limit: int = MAX_CHARS) -> str:
    """Return text as one line of visible characters, cut, with its addresses broken (``https[:]//evil[.]example``)."""
    line = inert(" ".join(text[: 8 * limit].split()))
    line = _SCHEME.sub(lambda found: f"{found[1] or found[2]}[:]", line)
    line = _HOST_DOT.sub(lambda found: found[0].replace(".", "[.]") if len(found[0]) > 1 else "[.]", line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
