"""Following the event logs of all runs, for those who tell of them outside: telemetry, notifications."""
