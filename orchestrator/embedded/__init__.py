"""The embedded service: Redis, one orchestrator and workers as children of one process, on one machine."""
