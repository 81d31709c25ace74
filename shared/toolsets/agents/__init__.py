"""The tools by which main and orchestrator agents start other agents, wait for them and look at them (DIS-02)."""

from soong.shared.toolsets.agents.looking import DefinitionsOf, LookingTools
from soong.shared.toolsets.agents.starting import StartingTools

__all__ = ["DefinitionsOf", "LookingTools", "StartingTools"]
