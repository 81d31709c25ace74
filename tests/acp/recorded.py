"""Start the agent that the arguments name, pass its protocol on, and keep a copy: ``recorded.py FILE COMMAND …``."""

import asyncio
import json
import os
import sys
from pathlib import Path

LIMIT = 2**24


async def main(file: Path, *command: str) -> int:
    """Pass lines both ways until either side ends."""
    pipe = asyncio.subprocess.PIPE
    agent = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LIMIT)
    assert agent.stdin is not None
    assert agent.stdout is not None
    to_agent, from_agent = agent.stdin, agent.stdout
    ours = asyncio.StreamReader(limit=LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ours), sys.stdin)

    async def pass_on() -> None:
        while line := await ours.readline():
            with file.open("ab") as kept:
                kept.write(line)
            to_agent.write(line)
            await to_agent.drain()
        to_agent.close()

    passing = asyncio.create_task(pass_on())
    while line := await from_agent.readline():
        said = json.loads(line)
        can = (said.get("result") or {}).get("agentCapabilities")
        if can and "NO_RESUME" in os.environ:
            del can["sessionCapabilities"]["resume"]
        with file.open("a") as kept:
            kept.write(json.dumps(said) + "\n")
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    passing.cancel()
    return await agent.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:])))
