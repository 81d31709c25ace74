"""The task tools: a child's own step, and tasks for those who plan them (DAG-01)."""

from soong.shared.toolsets.tasks.own import TaskTools
from soong.shared.toolsets.tasks.planning import PlanningTools
from soong.shared.toolsets.tasks.templates import PlanTemplates

__all__ = ["PlanTemplates", "PlanningTools", "TaskTools"]
