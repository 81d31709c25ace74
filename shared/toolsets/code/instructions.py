"""What an instruction file of the project adds to a run that reads it: a system block of its own (FS-08)."""

import hashlib
import os
from typing import Final

from soong.shared.sandbox.names import readable
from soong.shared.sandbox.paths import Located
from soong.shared.tools.result import ContextNode

INSTRUCTION_FILES: Final = ("AGENTS.md", "CLAUDE.md")
MAX_INSTRUCTION_BYTES: Final = 32 * 1024
_DIGEST_CHARS: Final = 12


def instructions(located: Located, shown: str, descriptor: int) -> tuple[ContextNode, ...]:
    """Return the block for an opened instruction file; none outside the project or for an empty file.

    The full file is used, whatever page of it was asked for, up to a bound. The name says file and content: the same
    content read again gives the same node, and a run needs it once.
    """
    content = os.pread(descriptor, MAX_INSTRUCTION_BYTES + 1, 0)
    if not located.is_inside_project or not content.strip() or b"\0" in content:
        return ()
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]
    text = content[:MAX_INSTRUCTION_BYTES].decode("utf-8", "ignore")
    end = "" if len(content) <= MAX_INSTRUCTION_BYTES else f"\n[cut at {MAX_INSTRUCTION_BYTES} bytes]"
    head = f"Instructions of this project for the files next to and below {readable(shown)}:\n\n"
    return (ContextNode("system", f"{shown}@{digest}", f"{head}{text}{end}"),)
