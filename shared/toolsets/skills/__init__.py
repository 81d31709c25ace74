"""Skills: folders with a SKILL.md that an agent lists and loads into its context (SKL-01)."""
