"""The audit log: answers, decisions and grants with author, time and channel, in chains that show tampering."""
