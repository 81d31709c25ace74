"""The published form of each thing: one schema, used by the HTTP API, ``--json`` and the SDK alike."""
