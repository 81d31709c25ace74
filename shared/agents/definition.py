"""Agent definitions: what kind of agent a run is, by id (DIS-02).

Owns the values and the registry. A definition is a preference: which tools its runs get is computed by the surface
(:mod:`soong.shared.tools.surface`). The definitions are the built-in ones. A run takes instructions and tools from its
definition; ``model`` and ``limits`` are kept and not yet read by any run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.tools.surface import DEFAULT_WORKER_TOOLS, RunMode


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """What ends a run by itself (DIS-07). Its time is limited by its step."""

    max_turns: int = 50
    max_repeated_failures: int = 6
    """How many turns in a row may make the same call that fails in the same way; 0: any number."""
    max_reasks: int = 3
    """How often an answer that breaks the output schema is asked for again."""
    max_continuations: int = 2
    """How often an answer that was cut at the model's limit of output tokens is continued (DIS-12)."""
    model_attempts: int = 5
    """How often one model request is sent, provider failures included (DIS-09)."""
    parallel_reads: int = 10
    """How many neighbouring reads of a turn run at once (EXE-03)."""


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """``suggested_tools`` None takes the role's default."""

    id: str
    name: str
    description: str
    instructions: str
    model: str = ""
    suggested_tools: tuple[str, ...] | None = None
    mode: RunMode = RunMode.DEFAULT
    limits: AgentLimits = field(default_factory=AgentLimits)


class AgentDefinitionRegistry:
    """Definitions by id; a duplicate is an error, never an override."""

    def __init__(self, definitions: Iterable[AgentDefinition] = ()) -> None:
        self._definitions: dict[str, AgentDefinition] = {}
        for definition in definitions:
            self.register(definition)

    def register(self, definition: AgentDefinition) -> None:
        """Raises: InvalidConfigError when the id is taken."""
        if definition.id in self._definitions:
            raise InvalidConfigError(f"two agent definitions have the id {definition.id!r}; rename one")
        self._definitions[definition.id] = definition

    def get(self, definition_id: str) -> AgentDefinition:
        """Raises: NotFoundError."""
        try:
            return self._definitions[definition_id]
        except KeyError:
            raise NotFoundError("agent definition", definition_id) from None

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._definitions)


_WORKER_INSTRUCTIONS = """\
You are a worker agent. You have one step of a larger task; your instructions and inputs are in the first message.
Work only with the tools you are given: call them, read their results, and continue until the step is done.
Report only what you have seen in a tool's result. Relative paths start at the working directory (`cwd`).
If a tool is denied, do not try it again with the same target: finish with what you have and say what was denied.
When you are done, answer in the form that is asked for and add nothing else."""

_ORCHESTRATOR_INSTRUCTIONS = "You own a task: you plan its steps, dispatch workers and put their results together."


def builtin_definitions() -> AgentDefinitionRegistry:
    """Return a registry with the definitions that are always there."""
    return AgentDefinitionRegistry(
        (
            AgentDefinition(
                id="default_worker_agent",
                name="Worker",
                description="Does one step of a task with read-only tools, and what else the step asks for.",
                instructions=_WORKER_INSTRUCTIONS,
                suggested_tools=DEFAULT_WORKER_TOOLS,
            ),
            AgentDefinition(
                id="orchestrator",
                name="Orchestrator",
                description="Owns a task and dispatches its steps.",
                instructions=_ORCHESTRATOR_INSTRUCTIONS,
            ),
        )
    )
