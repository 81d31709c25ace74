"""A worker's process that has turned bad: it does what it is told, with a worker's database role and Redis user."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
import redis

from soong.shared.storage.sql.engine.pooler import CREDENTIAL


def main() -> None:
    """Carry out acts until standard input ends."""
    options = f"-c {CREDENTIAL}={os.environ['BAD_CREDENTIAL']}"
    redis_url = os.environ.get("BAD_REDIS", "")
    client = redis.Redis.from_url(redis_url, protocol=2) if redis_url else None
    with psycopg.connect(os.environ["BAD_DATABASE"], autocommit=True, options=options) as database:
        for line in sys.stdin:
            act = json.loads(line)
            outcome = _redis(client, act["redis"]) if "redis" in act else _sql(database, act["sql"], act["values"])
            sys.stdout.write(json.dumps(outcome, default=str) + "\n")
            sys.stdout.flush()


def _sql(database: "psycopg.Connection[Any]", statement: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        cursor = database.execute(statement.encode(), values)
    except psycopg.Error as error:
        return {"refused": type(error).__name__}
    return {"rows": cursor.rowcount, **({"told": cursor.fetchall()} if cursor.description else {})}


def _redis(client: "redis.Redis | None", command: list[Any]) -> dict[str, Any]:
    assert client is not None
    try:
        return {"told": str(client.execute_command(*command))}  # type: ignore[no-untyped-call]  # redis-py's own
    except redis.ResponseError as error:
        return {"refused": str(error)}


@dataclass(slots=True)
class BadWorker:
    """The process as a test holds it."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, database_url: str, credential: str, redis_url: str = "") -> "BadWorker":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "tests.integration.bad_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(Path.cwd()),
                "BAD_DATABASE": database_url,
                "BAD_CREDENTIAL": credential,
                "BAD_REDIS": redis_url,
            },
        )
        return cls(process)

    async def sql(self, statement: str, **values: object) -> dict[str, Any]:
        return await self._act({"sql": statement, "values": values})

    async def redis(self, *command: object) -> dict[str, Any]:
        return await self._act({"redis": command})

    async def _act(self, act: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(act).encode() + b"\n")
        async with asyncio.timeout(60):
            line = await self.process.stdout.readline()
        assert line, "the bad worker's process has ended"
        return cast("dict[str, Any]", json.loads(line))

    async def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        async with asyncio.timeout(10):
            await self.process.wait()


if __name__ == "__main__":
    main()
