"""The outcome that a call or a plan's steps would have, without making a call (PER-10, PER-17).

The same parts as in a run judge here: the tool set, the schema, the tool's own target, traits, risk, and the policy. No
handler runs and nothing is written; a target may look at the disk, as it does before a real question.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.program import existing_folder
from soong.shared.core.errors import UsageError
from soong.shared.core.foreign import call_foreign
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.settings import RUNS, Settings
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.configured import configured_write_roots, run_dirs_of, surface_request
from soong.shared.permissions.consent import Preview
from soong.shared.permissions.explain import (
    CallExplanation,
    EffectivePolicy,
    SkillDeclaration,
    by_policy,
    by_sandbox,
    by_tool_set,
)
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.preview import Previewer
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import NO_PROGRESS, RunDirs, Target, ToolContext, ToolDefinition
from soong.shared.tools.permission_check import effective_traits, for_call, risk_of
from soong.shared.tools.ports import GateCall
from soong.shared.tools.results.normalize import failure_of
from soong.shared.tools.schema import validate
from soong.shared.tools.surface import Surface, compute_surface
from soong.shared.toolsets.sources import ToolEnvironment, project_skills

_NOBODY = RunIdentity("sess_explain", "run_explain", "agent_explain", Role.MAIN, "")


class Explainer(Value):
    """The effective policy of a project under the configuration of a home, with the rules of a command line."""

    catalogue: Catalogue
    paths: PathPolicy
    project: Path
    home: str = msgspec.field(default_factory=lambda: str(Path.home()))
    allow: Sequence[str] = ()
    is_tainted: bool = False
    cwd: Path | None = None
    stored: Policy | None = None
    """The policy of a session that there is, instead of what a new one would have."""
    step: str = ""
    """Key of the step whose call it is."""

    @property
    def policy(self) -> Policy:
        if self.stored is not None:
            return self.stored
        return self.catalogue.policy.with_rules(self.catalogue.rules_of(*self.allow))

    @property
    def run_dirs(self) -> RunDirs:
        """Return the folders that a run of this project would have; its own are named as in its row."""
        project, cwd = existing_folder(self.project), self.cwd or Path.cwd()
        run_dir = (self.paths.data or self.paths.agent_home or project) / RUNS / "<run-id>"
        write_roots, tools = configured_write_roots(self.catalogue.config), self.catalogue.tools
        return run_dirs_of(
            project, cwd, run_dir, self.policy, tools, write_roots=write_roots, home=self.home, step=self.step
        )

    def effective(self) -> EffectivePolicy:
        """Return the policy as a whole. Raises: UsageError; InvalidConfigError."""
        run_dirs = self.run_dirs
        skills = [
            SkillDeclaration(skill.name, skill.level, text.tools, text.permissions)
            for skill in project_skills(self.paths.agent_home, self.catalogue.config, run_dirs.project)
            if (text := skill.text) is not None and not skill.is_shadowed and (text.tools or text.permissions)
        ]
        roots, tools = run_dirs.write_roots, self.catalogue.tools
        return EffectivePolicy(self.policy, self.paths, run_dirs.project, roots, tools, tuple(skills))

    def tool(self, name: str) -> ToolDefinition:
        """Return a tool by name or alias. Raises: UsageError."""
        for tool in self.catalogue.tools:
            if name in (tool.name, *tool.aliases):
                return tool
        raise UsageError(f"there is no tool {name!r}; `soong tools list` shows them all")

    def call(self, tool: ToolDefinition, arguments: JsonObject, role: Role) -> CallExplanation:
        """Say what would become of a call of a run of this role. Raises: UsageError for arguments that do not fit."""
        wanted = surface_request(self.catalogue.config, role, allowed_tools=(tool.name,))
        decision = compute_surface(self.catalogue.tools, wanted).explain(tool.name)
        if decision is not None and not decision.is_in:
            return by_tool_set(decision)
        problem = "; ".join(dict.fromkeys(map(str, validate(tool.input_schema, arguments))))
        if not problem and tool.validate_input is not None:
            problem = tool.validate_input(arguments) or ""
        if problem:
            raise UsageError(f"{tool.name} does not take these arguments: {problem}")
        tool = for_call(tool, arguments)
        context = ToolContext(_NOBODY, self.run_dirs, "call_explain", "explain", 0, NO_PROGRESS)
        try:
            target = call_foreign(tool.target, context, arguments) if tool.target is not None else Target()
        except Exception as error:  # noqa: BLE001  # whatever a target raises is how the call would end
            return by_sandbox(tool.name, failure_of(error))
        traits = effective_traits(tool, arguments)
        asks = tool.check_permissions is not None and tool.check_permissions(context, arguments) == "ask"
        call = GateCall(
            identity=replace(_NOBODY, step_key=self.step),
            fence=0,
            tool_call_id=context.tool_call_id,
            definition=tool,
            permission_input=arguments,
            input_digest=digest(arguments),
            traits=traits,
            target=target,
            risk=risk_of(tool, traits),
            cwd=str(context.run_dirs.cwd),
            hook_result="ask" if asks else "none",
        )
        return by_policy(self.policy, call, home=self.home, is_tainted=self.is_tainted)


def preview_of(
    plan: Plan,
    inputs: JsonObject,
    project: Path,
    cwd: Path,
    allow: Sequence[str],
    catalogue: Catalogue,
    settings: Settings,
) -> Preview:
    """Look at a plan as :func:`soong.orchestrator.operations.preparation.prepared` would write it.

    ``inputs`` are bound. Nothing is started or written. Raises: UsageError, the project is not a folder, an input or a
    rule is wrong; InvalidConfigError.
    """
    paths = ToolEnvironment.of(settings, catalogue.config).paths
    explainer = Explainer(catalogue, paths, project, allow=allow, cwd=cwd)
    by_name = {tool.name: tool for tool in catalogue.tools}

    def tools_of(step: StepSpec) -> tuple[ToolDefinition, ...]:
        surface = catalogue.surface_of(step)
        return tuple(by_name[name] for name in Surface.from_json(surface).tools) if surface else ()

    previewer = Previewer(explainer.policy, explainer.paths, explainer.run_dirs, tools_of, explainer.home)
    return previewer.preview(plan, inputs)
