"""Transcripts in the documentation: blocks that tests write, and compare with what they see each time."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

WRITES: Final = os.environ.get("WRITE_TRANSCRIPTS") == "1"
_ID: Final = re.compile(r"\b(task|sess|run|req|agent|wrk|dec)_[0-9a-v]{26}")
_DIGEST: Final = re.compile(r"\b([0-9a-f]{4})[0-9a-f]{28,60}\b")
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z")


def shortened(text: str, folder: Path) -> str:
    """Return a text with short ids and the folder of the reader's example."""
    text = text.replace(str(folder), "/home/ada/project")
    text = _TIME.sub("2026-11-25T12:00:00Z", text)
    return _DIGEST.sub("b1a5…", _ID.sub(r"\1_01a2…", text))


def check_transcript(page: Path, name: str, lines: Sequence[str], folder: Path) -> None:
    """Compare a transcript with its block of the page, or write the block."""
    seen = "\n".join(shortened(line, folder).rstrip() for line in lines)
    text = page.read_text(encoding="utf-8")
    block = re.compile(rf"(?<=<!-- transcript: {re.escape(name)} -->\n)```text\n(.*?)\n```", re.DOTALL)
    found = block.search(text)
    assert found is not None, f"{page.name} has no block for the transcript {name!r}"
    if WRITES:
        page.write_text(f"{text[: found.start()]}```text\n{seen}\n```{text[found.end() :]}", encoding="utf-8")
        return
    assert found[1] == seen, f"{page.name}, {name}: written is\n{found[1]}\nand seen was\n{seen}"
