"""What a plan will ask for, from where it is submitted: with this home's configuration, tools and folders (PER-17).

One function for every front: the command line shows its value, a program and the HTTP API return it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.explanation import Explainer
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.plan.inputs import bind_inputs
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.consent import Preview
from soong.shared.permissions.preview import Previewer
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.surface import Surface
from soong.shared.toolsets.sources import ToolEnvironment


def preview_of(
    plan: Plan,
    inputs: Mapping[str, Json],
    *,
    project: Path,
    allow: Sequence[str],
    catalogue: Catalogue,
    settings: Settings,
    cwd: Path | None = None,
) -> Preview:
    """Look at a plan as :func:`soong.orchestrator.client.submission.submission` would write it. Nothing is started
    or written.

    Raises:
        UsageError: the project is not a folder, an input or a rule is wrong.
        InvalidConfigError: the configuration is.
    """
    explainer = Explainer(
        catalogue, ToolEnvironment.of(settings, catalogue.config).paths, project, allow=allow, cwd=cwd
    )
    by_name = {tool.name: tool for tool in catalogue.tools}

    def tools_of(step: StepSpec) -> tuple[ToolDefinition, ...]:
        surface = catalogue.surface_of(step)
        return tuple(by_name[name] for name in Surface.from_json(surface).tools) if surface else ()

    previewer = Previewer(explainer.policy, explainer.paths, explainer.run_dirs, tools_of, explainer.home)
    return previewer.preview(plan, bind_inputs(plan, inputs))
