"""The task of an agent as its loop gets it, and a run that can begin (:mod:`soong.shared.agents.runtime.assembly`)."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from soong.shared.agents.definition import AgentDefinition, AgentLimits, Compaction, CompactionStrategy, Price
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.run_models import Fallbacks
from soong.shared.agents.runtime.call_log import RunCallLog, StoredTranscript
from soong.shared.core.config import Config, ModelConfig
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.tools.deferred import DeferredTools
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.pipeline import ToolPipeline


class PreparedCalls(Value):
    """The work and the calls of a run whose agent is a model or a program. ``executor`` makes its calls."""

    task: AgentTask
    executor: ToolPipeline
    log: RunCallLog
    transcript: StoredTranscript
    run_dirs: RunDirs


class PreparedAgent(PreparedCalls):
    """The run of an agent on a model that can begin."""

    model: Any
    fallbacks: Fallbacks


class AgentObserver:
    """Gets the moments of an agent that a person may want to see counted; this one tells nobody."""

    def approval_waiting(self, identity: RunIdentity, tool: str) -> None:
        """A call of ``tool`` waits for consent."""

    def approval_settled(self, identity: RunIdentity) -> None:
        """Such a call waits no more: it was answered, or nobody will."""

    def tool_failed(self, identity: RunIdentity, tool: str, error: str) -> None:
        """A call of ``tool`` ended in an error of that type."""


class ModelRules(Value):
    """The model settings in the configuration of this process, by the models' names."""

    config: Config

    def configured(self, model: str) -> Iterator[ModelConfig]:
        """Yield the entries that a model matches, in the configuration's order."""
        return (one for pattern, one in self.config.models.items() if fnmatchcase(model, pattern))

    def window(self, model: str) -> int:
        """Return how many tokens the model reads at most; 0 where the configuration does not say."""
        windows = self.config.context.windows
        return next((size for name, size in windows.items() if fnmatchcase(model, name)), 0)

    def price(self, model: str) -> Price | None:
        own = next((price for name, price in self.config.prices.items() if fnmatchcase(model, name)), None)
        return None if own is None else Price(own.input, own.output)

    def compaction(self, model: str) -> Compaction:
        context = self.config.context
        return Compaction(CompactionStrategy(context.compaction), context.compact_at, self.window(model))


def agent_task(
    identity: RunIdentity,
    bound: BoundStep,
    definition: AgentDefinition,
    tools: Sequence[ToolDefinition],
    deferred: DeferredTools,
    *,
    run_dirs: JsonObject,
    output_schema: JsonObject | None,
    settings: Settings,
    rules: ModelRules,
    is_resumed: bool = False,
    is_limited: bool = False,
) -> AgentTask:
    """Return the work of a run. ``definition`` is the one stored with it; ``run_dirs`` is what its model is given."""
    limits: dict[str, Any] = {
        "max_turns": settings.max_turns,
        "max_repeated_failures": settings.max_repeated_failures,
        "parallel_reads": settings.parallel_reads,
        **definition.limits,
    }
    model = identity.model or settings.model
    return AgentTask(
        identity=identity,
        system=definition.instructions,
        instructions=bound.instructions,
        inputs=bound.inputs,
        tools=tools,
        deferred=deferred,
        run_dirs=run_dirs,
        output_schema=output_schema,
        limits=AgentLimits(**limits),
        options=definition.options,
        compaction=rules.compaction(model),
        price=rules.price(model),
        is_streamed=settings.stream,
        is_resumed=is_resumed,
        is_limited=is_limited,
    )
