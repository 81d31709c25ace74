"""What the agents of an owner's asks run with: its tools, hooks and gate.

The owner has the key by which decisions are signed. Where it may be another machine than its clients' its agents
therefore touch nothing but Soong's own state: they plan and delegate, and workers read, write and run commands
(docs/security.md).
"""

from typing import Final

from msgspec.structs import replace

from soong.orchestrator.client.tool_registry import owner_registry
from soong.orchestrator.owner.asks import AskRunner
from soong.shared.agents.pacing import LocalPacer, Pacer
from soong.shared.agents.runtime.assembly import AgentRuntime
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.core.config import CONFIG_FILE, Config
from soong.shared.core.settings import Settings, secret_values
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.store import Store
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.ports import ArtifactStore
from soong.shared.toolsets.agents import DefinitionsOf
from soong.shared.toolsets.hooks import all_hooks
from soong.shared.toolsets.memory.provider import MemoryProvider
from soong.shared.toolsets.sources import ToolEnvironment

OWNER_SOURCE: Final = f"the orchestrator's {CONFIG_FILE}"

_OWN_NAMESPACES: Final = ("agent.", "internal.")


def owner_agents(
    settings: Settings,
    config: Config,
    store: Store,
    notifier: Notifier,
    inbox: DecisionInbox,
    artifacts: ArtifactStore,
    service: TaskService,
    definitions_of: DefinitionsOf,
    pacer: Pacer | None = None,
    memory: MemoryProvider | None = None,
) -> AskRunner:
    """Return what runs the agents of asks in this process.

    ``definitions_of`` returns the definitions that may be named in a project now.

    Raises:
        InvalidConfigError, InvalidToolError: the configuration of the home or a module of tools cannot be used.
    """
    environment = ToolEnvironment.of(settings, config, starts_servers=settings.is_embedded)
    if not settings.is_embedded:
        environment = replace(environment, modules=())
    clean = redactor(secret_values(settings, config.secret_env, config.secret_files))
    runtime = AgentRuntime(
        store=store,
        notifier=notifier,
        inbox=inbox,
        artifacts=artifacts,
        clock=service.clock,
        settings=settings,
        config=config,
        registry=owner_registry(
            environment,
            service,
            service.clock,
            definitions_of,
            memory=memory,
            patience_s=settings.no_worker_s,
        ),
        hooks=all_hooks(environment, clean, settings.home),
        redactor=clean,
        source=OWNER_SOURCE,
        pacer=pacer or LocalPacer(),
        offers=any_tool if settings.is_embedded else is_harmless,
    )
    return AskRunner(store.asks, store.sessions, runtime, notifier, service.clock, clean, settings.max_asks)


def any_tool(_tool: ToolDefinition) -> bool:
    """Offer every tool: orchestrator, worker and client are one user's processes on one machine."""
    return True


def is_harmless(tool: ToolDefinition) -> bool:
    """Say whether a tool may run in the process that holds the signing key."""
    return tool.permission is Permission.READONLY and tool.name.startswith(_OWN_NAMESPACES)
