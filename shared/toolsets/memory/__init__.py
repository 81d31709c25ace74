"""Long-term memory of sessions for later ones, behind one port, and the one tool that reads it."""
