"""The work of a run as its loop takes it: of the run's rows, under the configuration of this process."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from soong.shared.agents.definition import AgentDefinition, AgentLimits, Compaction, CompactionStrategy, Price
from soong.shared.agents.ports import AgentTask
from soong.shared.core.config import Config, ModelConfig
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.tools.deferred import DeferredTools
from soong.shared.tools.definition import ToolDefinition


class ModelRules(Value):
    """What the configuration of this process says of models, by their names."""

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
