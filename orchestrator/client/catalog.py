"""The names for plans, as clients have them: tools and agent definitions; and the surface of a step's run.

The tools are those that workers with the same settings register, under the user's configuration. A step's functions
are known where they run.
"""

from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from soong.orchestrator.client.tool_registry import registry_of
from soong.orchestrator.embedded.own_modules import kept_modules
from soong.shared.agents.acp_agents import acp_tool_names, with_acp
from soong.shared.agents.definition import DEFINITION, AgentDefinition, AgentDefinitionRegistry, builtin_definitions
from soong.shared.agents.definition_files import LiveDefinitions
from soong.shared.agents.project_definitions import with_project
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import PlanNames, Registered
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.python_plan.function_step import step_modules
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.configured import policy_of, surface_request
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Rule, allow_rules
from soong.shared.tools.deferred import DEFERRED, deferred_of
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.surface import RunMode, Surface, compute_surface
from soong.shared.toolsets.sources import ToolEnvironment


def tools_of(environment: ToolEnvironment) -> tuple[ToolDefinition, ...]:
    """Return every tool that a plan may name, in registry order."""
    return registry_of(environment).definitions()


def _deployed_hint(settings: Settings) -> str:
    """Return what to do about a module of a plan that a service does not have."""
    if settings.is_embedded:
        return "end the service with `soong down` and run again, or start it with SOONG_FUNCTIONS=MODULE"
    return "add it to SOONG_FUNCTIONS of this command and of every worker; a deployment takes modules from nowhere else"


class Catalogue(Value, dict=True):
    """Built once a client. ``policy`` is what the configuration says, before any ``--allow``."""

    tools: tuple[ToolDefinition, ...] = msgspec.field(default_factory=lambda: tools_of(ToolEnvironment()))
    definitions: AgentDefinitionRegistry = msgspec.field(default_factory=builtin_definitions)
    """As they were when this was built."""
    config: Config = msgspec.field(default_factory=Config)
    needs_project: bool = False
    """Workers may run where the project is not: its mark, if it has one, says who has it."""
    live: LiveDefinitions | None = None
    """The same as they are now; None where they do not change."""
    base: PlanNames = PlanNames()
    """How modules and Celery apps may be named."""

    @cached_property
    def policy(self) -> Policy:
        return policy_of(self.config)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @classmethod
    def of(cls, settings: Settings, *, starts_servers: bool = True) -> Self:
        """Return what plans may name under these settings and the configuration of their home.

        ``starts_servers``: MCP servers that nobody has asked yet are started to be asked what they offer.

        Raises:
            InvalidConfigError: the configuration or a module of tools is wrong; names the place.
            InvalidToolError: a tool is refused.
        """
        environment = ToolEnvironment.of(settings, starts_servers=starts_servers)
        live = LiveDefinitions(settings.home, lambda known: with_acp(known, environment.config))
        base = PlanNames(lacks_app=settings.is_embedded and not settings.celery_app)
        return cls(tools_of(environment), live.now(), environment.config, not settings.is_embedded, live, base)

    def at(self, project: Path | None = None) -> "Catalogue":
        """Return the catalogue with the agent definitions that the home, and a project, have now."""
        known = self.definitions if self.live is None else self.live.now()
        if project is not None:
            known = with_project(known, project, self.config.agents)
        return self if known is self.definitions else replace(self, definitions=known)

    def rules_of(self, *allow: str) -> list[Rule]:
        """Return allow rules, with the tools of MCP servers as they are defined now. Raises: UsageError.

        They can be about tools, and about what agents of others ask for.
        """
        return allow_rules(allow, self.tools, acp_tool_names(self.config))

    def with_deployed_modules(self, settings: Settings) -> "Catalogue":
        """Return the catalogue for plans that may name the modules that the deployment has itself."""

        def load(name: str) -> Registered | None:
            kept = kept_modules(settings).values() if settings.is_embedded else ()
            if name not in (*settings.functions, *step_modules()[0], *chain.from_iterable(one.modules for one in kept)):
                raise InvalidConfigError(f"SOONG_FUNCTIONS does not name the module {name!r}")
            return None

        return replace(self, base=replace(self.base, load_module=load, module_hint=_deployed_hint(settings)))

    def known(self) -> PlanNames:
        """Return what plans are checked against; a glob that sets the limits of models chooses none."""
        models = {one.id: one.model for one in self.definitions if one.model}
        choosable = {*models.values(), *self.config.agents.project_models}
        choosable.update(name for one in self.definitions for name in one.fallback_models or ())
        choosable.update(name for name in self.config.models if not set(name) & set("*?["))
        choosable.update(name for one in self.config.models.values() for name in one.fallback)
        return replace(
            self.base,
            tools=self.names,
            definitions=self.definitions.ids,
            definition_models=models,
            choosable_models=frozenset(choosable),
        )

    def planner(self, default_model: str, max_children: int = 0) -> Planner:
        """Return what makes rows of plans in this process."""
        return Planner(self.known(), self.surface_of, default_model, max_children)

    def live_planner(self, default_model: str, max_children: int = 0, *, reads_projects: bool) -> Planner:
        """Return a planner that knows the agent definitions of now; with ``reads_projects`` those of projects, too."""

        def of_project(project: str) -> Planner:
            return self.at(Path(project) if reads_projects else None).planner(default_model, max_children)

        return replace(self.planner(default_model, max_children), of_project=of_project)

    def surface_of(self, step: StepSpec) -> JsonObject:
        """Return the stored surface of a step's run; a step that runs no agent has no tools."""
        if not step.kind.traits.is_agent:
            return {}
        try:
            definition = self.definitions.get(step.agent)
        except NotFoundError:
            # Plans are checked against the definitions; one that was not is refused by the worker, by name.
            nothing = surface_request(self.config, Role.WORKER, RunMode.READONLY, allowed_tools=())
            return compute_surface(self.tools, nothing).as_json()
        request = surface_request(
            self.config,
            step.role,
            definition.mode,
            default_tools=definition.suggested_tools,
            allowed_tools=step.allowed_tools,
        )
        surface = compute_surface(self.tools, request)
        return self._document(surface, definition.with_settings(step.settings))

    def surface_of_ask(self, definition: AgentDefinition, role: Role) -> JsonObject:
        """Return the stored surface of an agent with a goal, which the owner of its session runs."""
        request = surface_request(self.config, role, definition.mode, default_tools=definition.suggested_tools)
        return self._document(compute_surface(self.tools, request), definition)

    def _document(self, surface: Surface, definition: AgentDefinition) -> JsonObject:
        """Return what is stored of a run's tools and agent."""
        known = {tool.name: tool for tool in self.tools}
        deferred = deferred_of([known[name] for name in surface.tools], self.config.tools)
        more: JsonObject = {DEFERRED: list(deferred)} if deferred else {}
        return {**surface.as_json(), DEFINITION: definition.to_json(), **more}
