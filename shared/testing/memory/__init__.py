"""One-process adapters of the ports: the store and the ring."""

from shared.testing.memory.ring import MemorySwitchboard
from shared.testing.memory.store import MemoryStore

__all__ = ["MemoryStore", "MemorySwitchboard"]
