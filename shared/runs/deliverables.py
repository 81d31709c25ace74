"""Deliverables: what a run wrote outside its own folder is kept by content too, for the owner's run folders."""

import asyncio
from pathlib import Path

from shared.jsontext import Json
from shared.tools.ports import ArtifactStore
from shared.tools.result import ToolResult


async def keep_deliverable(result: ToolResult, artifacts: ArtifactStore) -> dict[str, Json] | None:
    """Store the file that a successful write names as its deliverable; return how the event refers to it."""
    named = result.metadata.get("deliverable")
    if result.error is not None or not isinstance(named, dict):
        return None
    path = Path(str(named["path"]))
    ref = await artifacts.put(await asyncio.to_thread(path.read_bytes), "application/octet-stream", path.name)
    return {"name": path.name, "path": str(path), "digest": ref.digest, "size_bytes": ref.size_bytes}
