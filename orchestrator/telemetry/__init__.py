"""What happens in runs, sent outside from their logs: traces by OpenTelemetry."""
