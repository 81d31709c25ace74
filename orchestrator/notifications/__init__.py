"""Notifications outside of what happens in runs: who is notified of what, and how it gets there."""
