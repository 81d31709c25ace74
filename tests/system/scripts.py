"""Scripted agents for tests, imported by workers through SOONG_FUNCTIONS."""

from contextlib import suppress
from typing import Any

from soong import AgentHandle, ToolCallError, scripted_agent


@scripted_agent("tests.write_path")
async def write_path(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Write a file, and say where also when it was denied."""
    try:
        await agent.call("code.write_file", path=inputs["path"], content="x")
    finally:
        return {"wrote": inputs["path"]}  # noqa: B012  # also of a denied call


@scripted_agent("tests.read_path")
async def read_path(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    return {"text": (await agent.call("code.read_file", path=inputs["path"]))["text"]}


@scripted_agent("tests.report")
async def report(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Write one file that may be written, and one that may not."""
    await agent.call("code.write_file", path="yes.txt", content="report")
    try:
        await agent.call("code.write_file", path="no.txt", content="report")
    except ToolCallError as error:
        return {"refused": error.type}
    return {}


@scripted_agent("tests.refund")
async def refund(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Refund an order, once more where it is unknown whether it was done."""
    try:
        await agent.call("shop.refund", order="A7")
    except ToolCallError as error:
        if error.type != "unknown_after_crash":
            raise
        second = await agent.call("shop.refund", order="A7")
        return {"first": error.type, "second": second["done"]}
    return {}


@scripted_agent("tests.look")
async def look(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
    await agent.call("shop.look", order="A7")
    return {}


@scripted_agent("tests.pull")
async def pull(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Take ready steps until none is left."""
    while ready := (await agent.call("agent.task_query_steps"))["ready"]:
        try:
            taken = (await agent.call("agent.task_claim_step", step_id=ready[0]["id"]))["claimed"]
        except ToolCallError:
            continue
        try:
            await agent.call("test.effect", seconds=0.5)
        except ToolCallError as error:
            if error.type != "unknown_after_crash":
                raise
        with suppress(ToolCallError):  # the step was taken back while this worker was away
            await agent.call("agent.task_update_step", step_id=taken["id"], output={"n": taken["inputs"]["n"]})
    return "nothing is left"
