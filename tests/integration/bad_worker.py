"""A worker's process that has turned bad: it does what it is told, with a worker's database role."""

import asyncio
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any, cast

import psycopg

from soong.shared.storage.sql.engine.pooler import CREDENTIAL
from tests.warm import ROOT, WarmProcess, warm_parent


def main() -> None:
    """Carry out statements until nobody sends any."""
    options = f"-c {CREDENTIAL}={os.environ['BAD_CREDENTIAL']}"
    with (
        socket.socket(fileno=int(sys.argv[1])) as channel,
        channel.makefile("rw") as stream,
        psycopg.connect(os.environ["BAD_DATABASE"], autocommit=True, options=options) as database,
    ):
        for line in stream:
            stream.write(json.dumps(_sql(database, **json.loads(line)), default=str) + "\n")
            stream.flush()


def _sql(database: "psycopg.Connection[Any]", statement: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        cursor = database.execute(statement.encode(), values)
    except psycopg.Error as error:
        return {"refused": type(error).__name__}
    return {"rows": cursor.rowcount, **({"told": cursor.fetchall()} if cursor.description else {})}


@dataclass(slots=True)
class BadWorker:
    """The process as a test holds it."""

    process: WarmProcess
    answers: asyncio.StreamReader
    acts: asyncio.StreamWriter

    @classmethod
    async def start(cls, database_url: str, credential: str) -> "BadWorker":
        ours, theirs = socket.socketpair()
        env = {"PATH": os.environ["PATH"], "BAD_DATABASE": database_url, "BAD_CREDENTIAL": credential}
        with theirs:
            number = theirs.fileno()
            process = warm_parent().start(
                __name__, [str(number)], env=env, cwd=ROOT, stdout=1, stderr=2, pass_fds=(number,)
            )
        return cls(process, *await asyncio.open_unix_connection(sock=ours))

    async def sql(self, statement: str, **values: object) -> dict[str, Any]:
        self.acts.write(json.dumps({"statement": statement, "values": values}).encode() + b"\n")
        async with asyncio.timeout(60):
            line = await self.answers.readline()
        assert line, "the bad worker's process has ended"
        return cast("dict[str, Any]", json.loads(line))

    async def end(self) -> None:
        self.acts.close()
        await asyncio.to_thread(self.process.wait, 10)


if __name__ == "__main__":
    main()
