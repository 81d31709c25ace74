"""One deployment with a scene in it, and the garbage collector over its rows and files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from soong.orchestrator.retention.collector import GarbageCollector, RetentionLimits
from soong.orchestrator.retention.files import StoredFolders
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.retention import Retention
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.store import SqlStore
from tests.contract.scene import ContractHarness, completed, mark_recorded
from tests.integration.sql_stores import connected

DAY_US = 86_400_000_000


@dataclass
class Place:
    """One deployment with a scene in it, and its collector."""

    url: str
    home: Path
    scene: ContractHarness
    store: SqlStore
    rows: Retention

    @property
    def artifacts(self) -> FolderArtifacts:
        return FolderArtifacts(RootedFolder(self.home, "artifacts"))

    @property
    def collector(self) -> GarbageCollector:
        return GarbageCollector(
            self.rows, self.artifacts, StoredFolders(RootedFolder(self.home, "runs")), self.scene.clock
        )

    def collector_over(self, rows: Retention) -> GarbageCollector:
        folders = StoredFolders(RootedFolder(self.home, "runs"))
        return GarbageCollector(rows, self.artifacts, folders, self.scene.clock)

    @property
    def all_ended(self) -> RetentionLimits:
        return RetentionLimits(self.scene.now_us + 1, grace_s=0.0)

    async def ended_task(self, *steps: str, events: tuple[NewEvent, ...] = ()) -> str:
        task_id = await self.scene.task(*(steps or ("a", "b")))
        while claims := await self.scene.claim():
            await self.scene.advance([completed(claim, "done", events=events) for claim in claims])
        assert await self.scene.store.tasks.finish_task(self.scene.own, task_id, now_us=self.scene.now_us)
        await mark_recorded(self.store, task_id)
        return task_id

    def tables(self) -> dict[str, list[Any]]:
        """Return every row of every table, in an order of its own."""
        with connected(self.url, is_writer=False) as connection:
            return {
                name: sorted(connection.execute(text(f"SELECT * FROM {name}")).all(), key=repr)
                for name in metadata.tables
            }
