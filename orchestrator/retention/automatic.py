"""Garbage collection by the service itself, at an interval from its settings (OPS-10). It is off by default.

Several orchestrators may collect at the same time, also next to `soong gc`: each task is removed by one of them.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from soong.orchestrator.retention.collector import GarbageCollector, RetentionLimits
from soong.shared.core import timing
from soong.shared.core.amounts import read_age, read_size
from soong.shared.core.clock import Clock
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value

log = get_logger(__name__)


class RetentionSettings(Value):
    """``SOONG_GC_OLDER_THAN``, ``SOONG_GC_KEEP``, ``SOONG_GC_EVERY_S``. None: no limit by age; 0: none by size."""

    age_s: int | None
    keep_bytes: int
    every_s: float

    @classmethod
    def of(cls, settings: Settings) -> "RetentionSettings":
        """Raises: UsageError when an age or a size is not valid."""
        older_than, keep = settings.gc_older_than, settings.gc_keep
        return cls(
            read_age(older_than, "SOONG_GC_OLDER_THAN") if older_than else None,
            read_size(keep, "SOONG_GC_KEEP") if keep else 0,
            settings.gc_every_s,
        )

    @property
    def is_on(self) -> bool:
        return self.age_s is not None or bool(self.keep_bytes)


class AutomaticRetention(Value):
    """Collects until it is cancelled. ``open_collector`` connects for one collection."""

    wanted: RetentionSettings
    open_collector: Callable[[], AbstractAsyncContextManager[GarbageCollector]]
    clock: Clock

    async def run(self) -> None:
        """Collect at each interval. A collection that fails is logged; the next one finishes what it left."""
        wait_s = min(timing.MINUTE_S, self.wanted.every_s)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self.wanted.every_s
            try:
                await self._collect()
            except InvalidConfigError as error:
                log.error("gc_not_possible", error=str(error))
                return
            except (SoongError, OSError) as error:
                log.warning("gc_failed", error=str(error))
            except Exception:  # a fault here must not stop the service's work
                log.exception("gc_failed")

    async def _collect(self) -> None:
        age_s = self.wanted.age_s
        before_us = 0 if age_s is None else self.clock.now_us() - age_s * 1_000_000
        limits = RetentionLimits(before_us, self.wanted.keep_bytes)
        async with self.open_collector() as collector:
            done = await collector.collect(limits)
        if done.tasks or done.artifacts:
            log.info("gc_done", **done.as_json())
