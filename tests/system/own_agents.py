"""An agent of Pydantic AI for system tests, whose process is killed once, where its prompt says."""

import os
import signal
from pathlib import Path

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from soong import JsonObject, StepContext, step

FOLDER = Path(os.environ.get("OWN_AGENT_FOLDER", "/nonexistent"))


def dies_at(place: str, mode: str) -> None:
    """Kill this process, without a goodbye, at the place that is asked for; once."""
    if place != mode:
        return
    try:
        (FOLDER / f"died-{mode}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def note(word: str) -> None:
    with (FOLDER / "effects.txt").open("a") as file:
        file.write(f"{word}\n")


def history(ctx: RunContext[str], messages: list[ModelMessage]) -> list[ModelMessage]:
    if len(messages) > 1:
        dies_at("request", ctx.deps)
    return messages


def deps(inputs: JsonObject, _context: StepContext) -> str:
    return str(inputs["mode"])


agent = Agent("openai-chat:gpt-5", deps_type=str, defer_model_check=True, capabilities=[ProcessHistory(history)])


@agent.tool
def look(ctx: RunContext[str]) -> str:
    """Look, which changes nothing."""
    note(f"look {ctx.deps}")
    dies_at("look", ctx.deps)
    return "seen"


@agent.tool
def change(ctx: RunContext[str]) -> str:
    """Change something."""
    note(f"change {ctx.deps}")
    dies_at("change", ctx.deps)
    return "changed"


@agent.output_validator
def check(ctx: RunContext[str], output: str) -> str:
    dies_at("output", ctx.deps)
    if output == "nothing":
        raise ModelRetry("say more")
    return output


step(agent, name="tests.mortal", deps=deps, readonly=["look"])
