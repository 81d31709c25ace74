"""Functions, a tool and a scripted agent that write: what a user's module has, next to a plan."""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soong import JsonObject, StepContext
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.functions import AgentHandle, scripted_agent, step_function

log = logging.getLogger("team")


def writes(context: StepContext) -> Json:
    """Write to each stream, in the folder and in a temporary file; say where that was."""
    print("printed")
    print("to stderr", file=sys.stderr)
    log.warning("counted %d", 3)
    context.log.debug("attempt %d", context.attempt)
    Path("out.txt").write_text("from the folder")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print, "in a thread").result()
    with tempfile.NamedTemporaryFile() as file:
        is_temporary_here = Path(file.name).parent == context.folder
    return {
        "file": context.artifact("out.txt", title="The output"),
        "is_here": Path.cwd() == context.folder and Path("out.txt").absolute() == context.folder / "out.txt",
        "is_temporary_here": is_temporary_here,
        "project": str(context.project),
    }


@step_function("logs.plain")
def plain(_inputs: JsonObject, context: StepContext) -> Json:
    return writes(context)


@step_function("logs.async")
async def coroutine(_inputs: JsonObject, context: StepContext) -> Json:
    await asyncio.sleep(0)
    return writes(context)


@step_function("logs.process", isolation="process")
def process(_inputs: JsonObject, context: StepContext) -> Json:
    subprocess.run(["/bin/echo", "from a program"], check=True)
    return writes(context)


def _read(inputs: JsonObject, context: StepContext) -> Json:
    file = inputs["file"]
    assert isinstance(file, dict)
    return context.open(file).read().decode()


step_function("logs.read.plain")(_read)
step_function("logs.read.process", isolation="process")(_read)


@step_function("logs.read.async")
async def _read_soon(inputs: JsonObject, context: StepContext) -> Json:
    return _read(inputs, context)


@step_function("logs.where")
def where(_inputs: JsonObject, _context: StepContext) -> Json:
    return {"cwd": str(Path.cwd()), "temporary": tempfile.gettempdir()}


@step_function("logs.raise")
def fail(_inputs: JsonObject, _context: StepContext) -> Json:
    print("before it")
    logging.getLogger("httpx2").info("HTTP Request: GET https://example.org")

    def inner() -> None:
        raise ValueError("no such word")

    inner()
    return None


@step_function("logs.secret")
def secret(inputs: JsonObject, _context: StepContext) -> Json:
    print("key", os.environ.get("TEAM_KEY", "s3cret-of-the-team"))
    for line in str(inputs["key"]).splitlines():
        print(line, flush=True)
        time.sleep(0.3)  # written in several batches
    print("after it")
    return None


@step_function("logs.many")
def many(inputs: JsonObject, _context: StepContext) -> Json:
    for number in range(int(str(inputs["lines"]))):
        print("line", number)
    return None


@step_function("logs.slow")
def slow(inputs: JsonObject, _context: StepContext) -> Json:
    """Print a line now and then until a file is there."""
    number = 0
    while not Path(str(inputs["until"])).exists():
        print("tick", number, time.time())
        number += 1
        time.sleep(0.05)
    return number


@scripted_agent("logs.script")
async def script(inputs: JsonObject, agent: AgentHandle) -> Json:
    print("in the script")
    await agent.call("logs.shout", text="hey")
    raise KeyError("of the script")
