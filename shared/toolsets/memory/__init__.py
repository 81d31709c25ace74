"""Long-term memory: what sessions leave for later ones, behind one port, and the one tool that reads it."""
