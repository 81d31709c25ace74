"""Notifications to people of what happens in runs: who is notified of what, by which channel."""
