"""Identifiers, and the identity of a run: the lineage that its calls, requests and events carry (CARD-3).

An id is UUIDv7 text with a prefix that names the kind (RFC 9562, section 5.7). Ids sort by the time they were made, so
rows that are born together lie together in an index. A row names up to seven others, and indexes repeat them: a UUID is
26 digits of base 32 (RFC 4648, section 7), which sort as it does. Ids of earlier versions have 32 hexadecimal digits
and sort before them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, Literal

import uuid_utils

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

Kind = Literal[
    "sess",
    "task",
    "run",
    "agent",
    "call",
    "req",
    "ans",
    "dec",
    "own",
    "wrk",
    "disp",
    "cmd",
    "resp",
    "key",
    "tok",
    "aud",
    "msg",
]

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
_PAIRS: Final = [one + other for one in _DIGITS for other in _DIGITS]
_10, _30 = (1 << 10) - 1, (1 << 30) - 1


def base32(number: int) -> str:
    """Return 128 bits as 26 digits, two bits of zero after them: ``base64.b32hexencode`` takes three times as long."""
    bits = number << 2
    a, b, c, d = bits >> 90 & _30, bits >> 60 & _30, bits >> 30 & _30, bits & _30  # numbers below 2**30 are fast
    return (
        f"{_PAIRS[bits >> 120]}{_PAIRS[a >> 20]}{_PAIRS[a >> 10 & _10]}{_PAIRS[a & _10]}"
        f"{_PAIRS[b >> 20]}{_PAIRS[b >> 10 & _10]}{_PAIRS[b & _10]}{_PAIRS[c >> 20]}{_PAIRS[c >> 10 & _10]}"
        f"{_PAIRS[c & _10]}{_PAIRS[d >> 20]}{_PAIRS[d >> 10 & _10]}{_PAIRS[d & _10]}"
    )


_source: ContextVar[Callable[[], str]] = ContextVar("source of ids", default=lambda: base32(uuid_utils.uuid7().int))


def new_id(kind: Kind) -> str:
    """Return a fresh id such as ``run_0193…`` (prefix, underscore, 26 digits of base 32)."""
    return f"{kind}_{_source.get()()}"


@contextmanager
def ids_from(source: Callable[[], str]) -> Iterator[None]:
    """Take ids from ``source`` in this context and those copied from it: a run repeats itself only with its ids."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def step_key(task_id: str, step_id: str) -> str:
    """Return the global key of a step: the user's step id is unique in its task only."""
    return f"{task_id}/{step_id}"


def step_id_of(key: str) -> str:
    return key.partition("/")[2]


class Role(StrEnum):
    """The role of an agent in its session (DIS-06). Hard rules of the surface depend on it (ETS-06)."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"
    WORKER = "worker"

    @property
    def is_child(self) -> bool:
        """Say whether the hard limits of sub, fork and worker agents apply."""
        return self in (Role.SUB, Role.FORK, Role.WORKER)


class Origin(Value):
    """The origin of a run: the principal whose submission, retry or dispatch made it.

    ``is_foreign``: this principal is not on the session's side: neither the session's own nor an approver there. The
    session's grants and allow rules are that side's consent, so they answer for no foreign run.
    """

    principal: str = ""
    is_foreign: bool = False


OWN: Final = Origin()
"""The session's own side, without a principal."""


class RunIdentity(Value):
    """One run and where it comes from, read from its row and never from a message. ``task_id``, ``step_key`` and
    ``step_title`` are empty for a run without a step; the parents are empty for the session's first run.
    """

    session_id: str
    run_id: str
    agent_id: str
    role: Role
    definition: str
    parent_run_id: str = ""
    parent_agent_id: str = ""
    task_id: str = ""
    step_key: str = ""
    step_title: str = ""
    model: str = ""
    origin: Origin = OWN

    @property
    def chosen_model(self) -> str:
        """Its model; empty for an agent of another library, which has its own."""
        return "" if self.model == self.definition else self.model

    def as_json(self) -> dict[str, Json]:
        told: dict[str, Json] = {name: str(getattr(self, name)) for name in self.__struct_fields__ if name != "origin"}
        return {**told, "dispatched_by": self.origin.principal, "is_foreign": self.origin.is_foreign}
