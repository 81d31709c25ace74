"""The embedded service: Redis, one orchestrator and workers as children of one process, on one machine."""

from typing import Final

API_SOCKET: Final = "api.sock"
"""The socket of the operations, in the runtime folder of the service."""
