"""The guarded client against real servers: what it is told is what it connects to, at every hop (bad inputs 54, 55)."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from soong.shared.permissions.policy import NetworkMode, NetworkPolicy, Policy, reachable
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.sandbox.hosts import EgressPolicy, HostRefusedError
from soong.shared.sandbox.network import open_client
from soong.shared.tools.definition import Risk, Target
from soong.shared.tools.result import ErrorType
from soong.shared.tools.results.normalize import failure_of
from tests.loopback import listening

LIMIT = timedelta(seconds=5)


@dataclass
class Server:
    """A web server on the loopback; remembers what it was asked and by which name."""

    answers: dict[str, str] = field(default_factory=dict)
    """Path to where it redirects."""
    heard: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
        self.heard.append((host, path))
        where = self.answers.get(path, "")
        status = f"302 Found\r\nLocation: {where}" if where else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello".encode())
        await writer.drain()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with listening(server.serve) as server.port:
        yield server


@dataclass
class Names:
    """A resolver of our own: each name's addresses in turn, the last for ever."""

    turns: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        turns = self.turns.get(host, [])
        if not turns:
            raise OSError("no such name")
        return turns.pop(0) if len(turns) > 1 else turns[0]


def here(*hosts: str) -> Names:
    return Names({host: [["127.0.0.1"]] for host in hosts})


def anything(_host: str) -> bool:
    return True


async def fetch(url: str, reachable: EgressPolicy, names: Names) -> str:
    async with open_client(reachable, timeout=LIMIT, resolver=names) as client:
        return (await client.get(url)).text


@pytest.mark.spec("PER-09")
async def test_a_name_that_resolves_again_between_check_and_use_leads_nowhere_else() -> None:
    async with serving() as server:
        names = Names({"rebind.example.org": [["93.184.215.14"], ["127.0.0.1"]]})
        names.turns["rebind.example.org"].pop(0)  # the answer that was shown when the call was permitted

        with pytest.raises(HostRefusedError, match="private address"):
            await fetch(f"http://rebind.example.org:{server.port}/", EgressPolicy("rebind.example.org"), names)

    assert server.heard == []


@pytest.mark.spec("PER-09")
async def test_each_hop_is_resolved_once_and_judged_again() -> None:
    async with serving() as server:
        server.answers["/"] = "/again"
        names = Names({"rebind.example.org": [["127.0.0.1"], ["169.254.169.254"]]})

        with pytest.raises(HostRefusedError, match="special address"):
            await fetch(
                f"http://rebind.example.org:{server.port}/",
                EgressPolicy("rebind.example.org", is_named=anything),
                names,
            )

    assert [path for _, path in server.heard] == ["/"]
    assert names.asked == ["rebind.example.org", "rebind.example.org"]


@pytest.mark.spec("PER-09")
async def test_a_name_with_one_bad_address_and_one_without_any_are_refused() -> None:
    names = Names({"mixed.example.org": [["93.184.215.14", "10.0.0.1"]]})

    with pytest.raises(HostRefusedError, match=r"10\.0\.0\.1"):
        await fetch("http://mixed.example.org/", EgressPolicy("mixed.example.org"), names)

    with pytest.raises(HostRefusedError, match="cannot be resolved"):
        await fetch("http://gone.example.org/", EgressPolicy("gone.example.org"), Names({}))


@pytest.mark.spec("PER-09")
async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving() as server:
        names = Names({"two.example.org": [["127.0.0.2", "127.0.0.1"]]})

        text = await fetch(
            f"http://TWO.example.org:{server.port}/x", EgressPolicy("two.example.org", is_named=anything), names
        )

    assert text == "hello"
    assert server.heard == [(f"two.example.org:{server.port}", "/x")]
    assert names.asked == ["two.example.org"]


@pytest.mark.spec("PER-09")
async def test_the_name_and_not_the_address_is_in_the_tls_handshake(tmp_path: Path) -> None:
    told: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path, x509.DNSName("api.example.org")))
    context.sni_callback = lambda _socket, name, _context: told.append(name)
    async with listening(Server().serve, ssl=context) as port:
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):  # a stranger's certificate is not believed
            await fetch(
                f"https://api.example.org:{port}/",
                EgressPolicy("api.example.org", is_named=anything),
                here("api.example.org"),
            )

    assert told == ["api.example.org"]


def certificate(folder: Path, *names: x509.GeneralName) -> Path:
    """Write a certificate for these names with its key; its issuer is itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path


@pytest.mark.spec("PER-09", "RES-05")
def test_a_refused_host_is_network_denied_to_the_model() -> None:
    with pytest.raises(HostRefusedError) as caught:
        EgressPolicy("example.org").check_url("http://127.1:6379/")

    failure = failure_of(caught.value)
    assert (failure.type, failure.retryable) == (ErrorType.NETWORK_DENIED, False)
    assert "127.0.0.1" in failure.message


def web(host: str, *, is_tainted: bool = False) -> CallFacts:
    target = Target(kind="host", scope=host, shown=f"http://{host}/", host=host)
    tags = frozenset({"network", "readonly"})
    return CallFacts("web.fetch", tags, True, False, True, Risk.READ, target, is_tainted=is_tainted)


ALLOWED = Rule(Effect.ALLOW, "web.*", scope=Scope(ScopeKind.HOST, "cdn.example.org"))
BELOW = Rule(Effect.ALLOW, "web.*", scope=Scope(ScopeKind.HOST, "*.example.org"))
DENIED = Rule(Effect.DENY, "*", scope=Scope(ScopeKind.HOST, "cdn.example.org"))


@pytest.mark.spec("PER-09", "PER-21")
@pytest.mark.parametrize(
    ("policy", "is_tainted", "follows"),
    [
        (Policy(), False, False),
        (Policy((ALLOWED,)), False, True),
        (Policy((BELOW,)), False, True),
        (Policy((ALLOWED, DENIED)), False, False),
        (Policy((ALLOWED,), network=NetworkPolicy(NetworkMode.ALLOWLIST, ("api.example.org",))), False, False),
        (Policy((ALLOWED,), network=NetworkPolicy(NetworkMode.ALWAYS_ASK)), False, False),
        (Policy((ALLOWED,)), True, True),
        (Policy((BELOW,)), True, False),
    ],
    ids=["nothing allowed", "exact", "below", "denied", "off the list", "confirm", "tainted exact", "tainted below"],
)
def test_a_hop_is_judged_as_a_call_for_its_host_would_be(policy: Policy, is_tainted: bool, follows: bool) -> None:
    reach = reachable(policy, web("api.example.org", is_tainted=is_tainted))

    assert reach.may_follow("cdn.example.org") is follows


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    ("named", "address", "is_reached"),
    [
        ("intra.example.org", "10.0.0.7", True),
        ("intra.example.org", "169.254.169.254", False),
        ("169.254.169.254", "169.254.169.254", True),
        ("other.example.org", "10.0.0.7", False),
        ("*.example.org", "10.0.0.7", False),
    ],
)
def test_near_addresses_need_a_host_that_is_written_out(named: str, address: str, is_reached: bool) -> None:
    host = address if named == address else "intra.example.org"
    policy = Policy(network=NetworkPolicy(NetworkMode.ALLOWLIST, (named,)))
    check: Callable[[str, str], None] = reachable(policy, web(host)).check_address

    if is_reached:
        check(host, address)
    else:
        with pytest.raises(HostRefusedError, match="only a host that the policy names"):
            check(host, address)
