"""Access to the HTTP API: tokens, their rights, and their store."""
