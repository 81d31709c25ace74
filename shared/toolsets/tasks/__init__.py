"""The task tools: a child's own step, and tasks for those who plan them (DAG-01)."""

from soong.shared.toolsets.tasks.own import TaskTools
from soong.shared.toolsets.tasks.planning import PlanningTools, PlanTemplates

__all__ = ["PlanTemplates", "PlanningTools", "TaskTools"]
