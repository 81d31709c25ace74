"""The audit log: who answered, decided and granted what, when and by which channel, in chains that show tampering."""
