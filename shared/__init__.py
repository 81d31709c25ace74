"""The code of both processes. Imports neither the orchestrator nor the worker."""
