"""The process of this machine at the other end of a connection, and where it comes from (PER-13).

A token says for whom a request speaks; a program of a run may have found it in a file. So what an approver may do is
done only from a connection whose holders do not belong to a run's family. Linux: other systems do not show holders.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

import msgspec
import psutil

from soong.orchestrator.approvals.approval import provenance_of, workers_here
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import SessionStore
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
        """Return who holds the connection from ``client`` to ``server``.

        Raises:
            UnavailableError: the rows do not answer.
        """
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
        pids, hidden = [], []
        for pid in psutil.pids():
            try:
                if _holds(pid, f"socket:[{entry.inode}]"):
                    pids.append(pid)
            except PermissionError:
                if _user_of(pid) == entry.uid:
                    hidden.append(pid)
        return cls(tuple(pids), tuple(hidden))


def _holds(pid: int, link: str) -> bool:
    """Raises: PermissionError."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(_link(descriptor) == link for descriptor in descriptors)
    except (FileNotFoundError, ProcessLookupError):
        return False


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
