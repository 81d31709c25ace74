"""web.fetch behind the whole pipeline, a real web server on the loopback, and names of our own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from soong.shared.core.jsontext import Json
from soong.shared.permissions.gate import verdict_of_policy
from soong.shared.permissions.policy import Policy, judge, with_egress
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ToolFailure, ToolResult
from soong.shared.toolsets.web.fetch import WebTools
from tests.loopback import listening
from tests.unit.tools.parts import ALLOWED, PipelineHarness, RecordingGate, make_bench, text_of

HOST = "site.example.org"
Answer: TypeAlias = "bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]"


def answer(
    body: bytes | str = b"", kind: str = "text/plain; charset=utf-8", status: str = "200 OK", **headers: str
) -> bytes:
    """Return an answer as it goes over the wire; of header names the underscores are hyphens."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def redirect(where: str) -> bytes:
    return answer(status="302 Found", Location=where)


@dataclass
class PolicyGate(RecordingGate):
    """Judges by a policy; what it would ask about, a person allows."""

    policy: Policy = field(default_factory=lambda: allowing(HOST))

    async def decide(self, call: GateCall) -> Verdict:
        self.asked.append(call)
        facts = CallFacts.of(call)
        verdict = judge(self.policy, facts)
        judged = ALLOWED if verdict.effect is not Effect.DENY else verdict_of_policy(verdict)
        return with_egress(judged, self.policy, facts)


def allowing(*hosts: str) -> Policy:
    rules = (Rule(Effect.ALLOW, "web.fetch", scope=Scope(ScopeKind.HOST, host)) for host in hosts)
    return Policy(tuple(rules))


@dataclass
class Web:
    """What each path of the server answers, and what it was asked for."""

    bench: PipelineHarness
    gate: PolicyGate
    answers: dict[str, Answer] = field(default_factory=dict)
    names: dict[str, Sequence[str]] = field(default_factory=lambda: {HOST: ["127.0.0.1"]})
    heard: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    port: int = 0

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    def url(self, path: str, host: str = HOST) -> str:
        return f"http://{host}:{self.port}{path}"

    async def fetch(self, path_or_url: str, **more: Json) -> ToolResult:
        url = path_or_url if "://" in path_or_url else self.url(path_or_url)
        return await self.bench.call("web.fetch", {"url": url, **more})

    async def text(self, path: str, **more: Json) -> str:
        result = await self.fetch(path, **more)
        assert result.error is None, result.error
        return text_of(result).partition("\n\n")[2]

    async def failure(self, path_or_url: str, **more: Json) -> ToolFailure:
        result = await self.fetch(path_or_url, **more)
        assert result.error is not None, result
        return result.error

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ", 2)[1]
        self.heard.append(path)
        self.heads.append(head)
        known = self.answers.get(path, answer(status="404 Not Found"))
        if isinstance(known, bytes):
            writer.write(known)
        else:
            await known(writer)
        await writer.drain()


@asynccontextmanager
async def serving_web(
    answers: Mapping[str, Answer] | None = None, *, heeds_robots: bool = False, **more: Any
) -> AsyncIterator[Web]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return await web.resolve(host, port)

    gate = PolicyGate()
    bench = make_bench(WebTools(heeds_robots, resolve).tools(), gate=gate, **more)
    web = Web(bench, gate, dict(answers or {}))
    async with listening(web.serve) as web.port:
        yield web
