"""What both processes speak. Imports neither the orchestrator nor the worker."""
