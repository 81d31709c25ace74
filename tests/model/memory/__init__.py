"""One-process adapters of the ports: the store and the ring."""

from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore

__all__ = ["MemoryBus", "MemoryStore"]
