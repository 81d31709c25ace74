"""The caller of a request: its bearer token, looked up and compared, and the limit on wrong ones.

A token comes in the ``Authorization`` header and in no other way: not in a cookie, which a browser would add by itself,
and not in an address, which is logged by everybody on the way.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.operations.peers import Peer
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import AccessStore, ApiToken, Right, digest_of, read_token
from soong.shared.permissions.request import Provenance

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

        Raises:
            ProblemError: unauthenticated, or rate_limited after too many wrong tokens.
            UnavailableError: the database does not answer.
        """
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise _refusal("send a token: Authorization: Bearer soong_tok_…; `soong tokens create` makes one")
        found = _bearer(given)
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

        Raises:
            ProblemError: unauthenticated, or rate_limited after too many wrong codes or tokens.
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


def _bearer(given: Sequence[bytes]) -> tuple[str, str] | None:
    """Return id and secret of the one bearer token among the headers; None when there is no such one."""
    if len(given) != 1:
        return None
    scheme, _, text = given[0].decode("latin-1").partition(" ")
    return read_token(text.strip(" ")) if scheme.lower() == "bearer" else None
