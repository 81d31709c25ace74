"""Traces (OpenTelemetry) and metrics (Prometheus), made from the logs of runs and from rows."""
