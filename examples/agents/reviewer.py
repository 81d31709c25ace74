"""An agent of Pydantic AI as it is, and the one line that makes it a step: ``agent: python:team.reviewer``."""

from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext

from soong import JsonObject, StepContext, step


@dataclass
class Team:
    name: str


class Review(BaseModel):
    """The output of the step."""

    owner: str
    findings: list[str]


reviewer = Agent(
    "openai-chat:gpt-5",
    deps_type=Team,
    output_type=Review,
    instructions="You review one file. Read it, find out who owns it, and file an issue for each finding.",
    defer_model_check=True,  # the key is needed where the agent runs, not where the plan is checked
)


@reviewer.tool
def owner_of(ctx: RunContext[Team], path: str) -> str:
    """Return who owns a file."""
    return f"{ctx.deps.name} owns {path}"


@reviewer.tool_plain
def file_issue(title: str) -> int:
    """File an issue and return its number."""
    if len(title) < 10:
        raise ModelRetry("say in a sentence what is wrong")
    return 7


def team_of(inputs: JsonObject, _context: StepContext) -> Team:
    """Return the agent's dependencies."""
    return Team(str(inputs["team"]))


review = step(reviewer, name="team.reviewer", deps=team_of, readonly=["owner_of"])
