"""One-process adapters of the ports: the store, and the bus of the product."""

from soong.shared.engine.wire.bus import MemoryBus
from tests.model.memory.store import MemoryStore

__all__ = ["MemoryBus", "MemoryStore"]
