"""Follows the event logs of all runs for a consumer: telemetry, metrics, notifications."""
