"""The caller of a request: its bearer token, the limit on wrong ones, and the process at the other end (PER-13).

A token comes in the ``Authorization`` header and in no other way: not in a cookie, which a browser would add by itself,
and not in an address, which is logged by everybody on the way. It says for whom a request speaks; a program of a run
may have found it in a file. So what an approver may do is done only from a connection whose holders do not belong to a
run's family. Linux: other systems do not show holders.
"""

import asyncio
import os
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

import msgspec
import psutil

from soong.orchestrator.approvals.approval import provenance_of, workers_here
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import SessionStore
from soong.shared.permissions.access.token import AccessStore, ApiToken, Right, digest_of, read_token
from soong.shared.permissions.request import Provenance
from soong.shared.sandbox.family import HAS_MARK, RegisteredWorker

_GONE: Final = "the process that sent the request has let the connection go"
_HIDDEN: Final = "the process that holds the connection cannot be determined"
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")

Address = tuple[str, int]


class Peer(Value):
    """``problem`` says why nothing that comes over the connection is a person's; empty when nothing speaks for that."""

    provenance: Provenance = msgspec.field(default_factory=Provenance)
    problem: str = ""


class Peers(Value):
    """Looks callers of this machine up."""

    store: SessionStore

    async def peer(self, client: Address | None, server: Address | None) -> Peer:
        """Return who holds the connection from ``client`` to ``server``. Raises: UnavailableError."""
        if client is None or server is None:
            return Peer(Provenance(address="unknown"))
        if not HAS_MARK:
            return Peer(Provenance(address=client[0]))
        return await asyncio.to_thread(_look, client, server, await workers_here(self.store))


def _look(client: Address, server: Address, workers: Sequence[RegisteredWorker]) -> Peer:
    elsewhere = Provenance(address=client[0])
    entry = _entry(client, server)
    if entry is None:
        return Peer(elsewhere, _GONE if _is_of_this_machine(client, server) else "")
    found = _Holders.of(entry)
    provenances = [provenance for pid in found.pids if (provenance := provenance_of(pid, workers)).processes]
    of_run = next((provenance for provenance in provenances if provenance.run_process is not None), None)
    if of_run is not None:
        return Peer(of_run, of_run.problem)
    if provenances:
        return Peer(provenances[0])
    if _entry(client, server) != entry:
        return Peer(elsewhere, _GONE)
    return Peer(elsewhere, _HIDDEN if _may_be_of_a_run(entry, found.hidden, workers) else "")


def _may_be_of_a_run(entry: "_SocketEntry", hidden: Sequence[int], workers: Sequence[RegisteredWorker]) -> bool:
    """Say whether a run may hold a connection whose holder is not shown to us.

    It is one of the processes of that user that hide what they hold, as sshd does, or none that is seen from here. A
    worker hides as well: what its own threads send cannot be distinguished from that.
    """
    own = {worker.pid for worker in workers}
    others = [pid for pid in hidden if pid not in own]
    if others:
        return any(provenance_of(pid, workers).run_process is not None for pid in others)
    return entry.uid in {os.getuid(), *(user for pid in own if (user := _user_of(pid)) is not None)}


class _SocketEntry(Value):
    """A connection in the kernel's table."""

    uid: int
    inode: int


def _entry(client: Address, server: Address) -> _SocketEntry | None:
    """Return the client's end of a connection, if it lies on this machine."""
    wanted = {(_in_table(client, family), _in_table(server, family)) for family in (socket.AF_INET, socket.AF_INET6)}
    for table in _TABLES:
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if (words[1], words[2]) in wanted and words[9] != "0":
                    return _SocketEntry(int(words[7]), int(words[9]))
    return None


def _in_table(address: Address, family: socket.AddressFamily) -> str:
    """Return an address as the kernel's table has it: words of 32 bits in the machine's order, and the port."""
    ip = _ip(address)
    if family is socket.AF_INET6:
        packed = ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed
    else:
        packed = ip.packed if ip.version == 4 else b""
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


class _Holders(Value):
    """The processes that hold a socket; ``hidden`` are those of its user that do not show what they hold."""

    pids: tuple[int, ...]
    hidden: tuple[int, ...]

    @classmethod
    def of(cls, entry: _SocketEntry) -> "_Holders":
        pids, hidden, link = [], [], f"socket:[{entry.inode}]"
        for pid in psutil.pids():
            try:
                with os.scandir(f"/proc/{pid}/fd") as descriptors:
                    if any(_link(descriptor) == link for descriptor in descriptors):
                        pids.append(pid)
            except PermissionError:
                if _user_of(pid) == entry.uid:
                    hidden.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return cls(tuple(pids), tuple(hidden))


def _link(descriptor: "os.DirEntry[str]") -> str:
    try:
        return os.readlink(descriptor.path)  # noqa: PTH115  # thousands of them
    except OSError:
        return ""


def _is_of_this_machine(client: Address, server: Address) -> bool:
    if client[0] == server[0] or _ip(client).is_loopback:
        return True
    own = {one.address.partition("%")[0] for each in psutil.net_if_addrs().values() for one in each}
    return str(_ip(client)) in own


def _ip(address: Address) -> IPv4Address | IPv6Address:
    """Return the address as its own family has it: IPv4 is spoken to a socket of IPv6 under a mapped one."""
    ip = ip_address(address[0].partition("%")[0])
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip


def _user_of(pid: int) -> int | None:
    """Return the user that a process runs as; None when it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).uids().effective
    return None


log = get_logger(__name__)

CHALLENGE: Final = 'Bearer realm="soong"'
OWN: Final = "own"
"""Replaces a token's id in the record of an answer."""
MOST_FAILURES: Final = 10
MOST_ADDRESSES: Final = 10_000
_NOBODYS: Final = ApiToken("", "", frozenset(), digest_of(""), 0)
"""Compared with where no row is found, so that a wrong id takes as long as a wrong secret."""

Headers = Sequence[tuple[bytes, bytes]]


class Caller(Value):
    """The sender of a request: the principal of a token, with its rights, and where the request came from.

    ``peer`` is the holder of the connection, looked up for requests that may need the right to approve: a program of a
    run approves nothing, whatever token it found. Without it nothing is approved.
    """

    token: ApiToken
    peer: Peer | None = None
    channel: str = "http"
    """The channel of the caller's answers, for their record."""

    @property
    def principal(self) -> str:
        return self.token.principal

    @property
    def is_local(self) -> bool:
        """Whether it is the user of this machine, who needs no token."""
        return not self.token.digest

    def may(self, right: Right) -> bool:
        return self.token.allows(right) and not (right is Right.APPROVE and self.refusal)

    @property
    def refusal(self) -> str:
        """Say why nothing that comes over this connection is a person's; empty when nothing speaks for that."""
        return "it was not looked who sent the request" if self.peer is None else self.peer.problem

    def require(self, right: Right) -> None:
        """Raises: ProblemError (forbidden)."""
        if not self.may(right):
            log.warning("http_forbidden", token=self.token.id, principal=self.principal, right=str(right))
            if self.token.allows(right):
                raise ProblemError(ProblemCode.FORBIDDEN, f"the right {str(right)!r} needs a person: {self.refusal}")
            detail = f"this needs the right {str(right)!r}, which the token of {self.principal!r} does not carry"
            raise ProblemError(ProblemCode.FORBIDDEN, detail, {"right": str(right)})


def local_caller(
    principal: str, provenance: Provenance, channel: str, now_us: int, rights: frozenset[Right] = frozenset(Right)
) -> Caller:
    """Return the user of this machine, who needs no token: the process that calls says where the call comes from."""
    return Caller(ApiToken(OWN, principal, rights, "", now_us), Peer(provenance, provenance.problem), channel)


@dataclass(slots=True)
class Failures:
    """Wrong tokens by the address they came from, over the last minute; the addresses least heard of are forgotten."""

    clock: Clock
    _seen: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict)

    def note(self, address: str) -> float:
        """Count one more; return for how many seconds the address has had too many, 0 when it has not."""
        now_s = self.clock.monotonic_s()
        times = self._seen.setdefault(address, deque(maxlen=MOST_FAILURES + 1))
        self._seen.move_to_end(address)
        if len(self._seen) > MOST_ADDRESSES:
            self._seen.popitem(last=False)
        times.append(now_s)
        while times[0] <= now_s - timing.MINUTE_S:
            times.popleft()
        return 0.0 if len(times) <= MOST_FAILURES else times[0] + timing.MINUTE_S - now_s


@dataclass(slots=True)
class Authenticator:
    """Looks tokens up. A good token always passes: what others send from its address cannot lock it out."""

    tokens: AccessStore
    clock: Clock
    failures: Failures = field(init=False)

    def __post_init__(self) -> None:
        self.failures = Failures(self.clock)

    async def caller(self, headers: Headers, address: str) -> Caller:
        """Return who calls.

        Raises: ProblemError, unauthenticated, or rate_limited after too many wrong tokens; UnavailableError.
        """
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise _refusal("send a token: Authorization: Bearer soong_tok_…; `soong tokens create` makes one")
        scheme, _, text = given[0].decode("latin-1").partition(" ")
        found = read_token(text.strip(" ")) if len(given) == 1 and scheme.lower() == "bearer" else None
        token = await self.tokens.token(found[0]) if found is not None else None
        is_proved = (token or _NOBODYS).is_proved_by(found[1] if found is not None else "-")
        if token is None or not is_proved:
            raise self._failed(address, "the token is not one of this deployment")
        problem = token.problem(self.clock.now_us())
        if problem:
            raise self._failed(address, f"the token is {problem}; make another with `soong tokens create`")
        return Caller(token)

    async def sign_in(self, code: str, digest: str, address: str) -> Caller:
        """Put a secret, given by its digest, in the place of a sign-in's code; return whom it speaks for.

        Raises: ProblemError, unauthenticated, or rate_limited after too many wrong codes or tokens.
        """
        found = read_token(code)
        token = None
        if found is not None:
            now_us = self.clock.now_us()
            token = await self.tokens.sign_in(found[0], code_digest=digest_of(found[1]), digest=digest, now_us=now_us)
        if token is None:
            raise self._failed(address, "the code is wrong, used or late; `soong console` makes another")
        return Caller(token)

    async def still(self, caller: Caller) -> bool:
        """Say whether a caller whose stream is open may continue: its token neither revoked nor expired since."""
        if caller.is_local:
            return True
        token = await self.tokens.token(caller.token.id)
        return token is not None and not token.problem(self.clock.now_us())

    def _failed(self, address: str, detail: str) -> ProblemError:
        wait_s = self.failures.note(address)
        log.warning("http_token_refused", address=address, reason=detail)
        if wait_s > 0:
            retry = {"Retry-After": str(round(wait_s) + 1)}
            return ProblemError(ProblemCode.RATE_LIMITED, "too many wrong tokens came from this address", headers=retry)
        return _refusal(detail, challenge=f'{CHALLENGE}, error="invalid_token"')


def _refusal(detail: str, challenge: str = CHALLENGE) -> ProblemError:
    return ProblemError(ProblemCode.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": challenge})
