"""Deliverables: what a run wrote outside its own folder is kept by content too, for the owner's run folders."""

import os
from pathlib import Path
from typing import Final

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json
from soong.shared.sandbox.descriptors import opened_file
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.result import ToolResult

MAX_DELIVERABLE_BYTES: Final = 64 * 1024 * 1024


async def keep_deliverable(result: ToolResult, artifacts: ArtifactStore, redactor: Redactor) -> dict[str, Json] | None:
    """Store the file that a successful write names as its deliverable; return how the event refers to it.

    What is kept is a copy without secrets (EVT-05); the file itself stays as it was written.

    Raises:
        UsageError: it is not a regular file any more, or too large to be kept.
        OSError: it cannot be read.
    """
    named = result.metadata.get("deliverable")
    if result.error is not None or not isinstance(named, dict):
        return None
    path = Path(str(named["path"]))
    ref = await artifacts.put_made(
        lambda: _without_secrets(_read(path), redactor), "application/octet-stream", path.name
    )
    return {"name": path.name, "path": str(path), "digest": ref.digest, "size_bytes": ref.size_bytes}


def _read(path: Path) -> bytes:
    """Read the file without following a link that has taken its place meanwhile."""
    with opened_file(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > MAX_DELIVERABLE_BYTES:
            raise UsageError(
                f"{str(path)!r} has {size} bytes; at most {MAX_DELIVERABLE_BYTES} are kept as a deliverable"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(MAX_DELIVERABLE_BYTES)


def _without_secrets(data: bytes, redactor: Redactor) -> bytes:
    encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"  # any bytes, one character each: what is ASCII in them is still found
        text = data.decode(encoding)
    clean = redactor.text(text)
    return data if clean is text else clean.encode(encoding, "replace")
