"""The key that an owner signs with: one that is in the table of published keys (PER-12, OPS-12).

The key file alone proves nothing: a process that can write it would otherwise have its own key published. Only the
first owner of a deployment, whose table is empty, publishes the key that it finds. Every later key gets into the table
by an operator: ``soong keys rotate`` or ``soong keys adopt``.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.permissions.audit_log import of_refused_key
from soong.shared.permissions.signing import KeyFile, KeySource, Signer
from soong.shared.storage.store import Store, retry_until_confirmed

log = get_logger(__name__)

HINT = "if you put it there, run `soong keys adopt`; otherwise run `soong keys rotate`"


@dataclass(slots=True)
class DeploymentKey:
    """Accepts the key of ``source`` once it is published and good, and continues with the last one that was.

    A key that is refused is reported once: in the log, and in the audit log as ``unpublished_key``.
    """

    store: Store
    source: KeySource
    clock: Clock
    _accepted: Signer | None = None
    _told: str = ""

    async def current(self) -> Signer:
        """Return the signer of the moment.
        Raises: InvalidConfigError, the first key that this process finds is not one that the deployment published.
        """
        try:
            found = self.source.current()
        except InvalidConfigError as error:
            return await self._keep(str(error))
        if self._accepted is not None and found.key_id == self._accepted.key_id:
            return self._accepted
        problem = await self._problem(found)
        if problem:
            return await self._keep(problem, found.key_id)
        self._accepted, self._told = found, ""
        return found

    async def _problem(self, found: Signer) -> str:
        """Say why a key is not accepted; empty when it is. The first key of a deployment is published here."""
        now_us = self.clock.now_us()
        key = await self.store.keys.signing_key(found.key_id)
        if key is None:
            # The answer may be lost, or another owner of this deployment may have been first with the same key.
            await retry_until_confirmed(
                lambda: self.store.keys.publish_first_key(found.key_id, found.public_key, now_us=now_us),
                what=f"publication of {found.key_id}",
            )
            key = await self.store.keys.signing_key(found.key_id)
        if key is None:
            return f"the signing key {found.key_id} is not among the published keys of this deployment; {HINT}"
        state = key.state(now_us)
        if state in ("retired", "revoked"):
            return f"the signing key {found.key_id} is {state} and signs nothing any more; run `soong keys rotate`"
        return ""

    async def _keep(self, problem: str, key_id: str = "") -> Signer:
        """Log the problem once, and return the key that was good before."""
        if problem != self._told:
            if self._accepted is not None:  # otherwise the error below ends this process and says the same
                log.error("unpublished_key", key=key_id, problem=problem)
            await self.store.audit.note([of_refused_key(key_id, problem)], now_us=self.clock.now_us())
            self._told = problem
        if self._accepted is None:
            raise InvalidConfigError(problem)
        return self._accepted


async def open_key(store: Store, path: Path, clock: Clock) -> DeploymentKey:
    """Return the key of a key file, which is made only for a deployment that has none yet.
    Raises: InvalidConfigError, the file is missing although keys are published, cannot be used, or holds a key that was
    not published.
    """
    published = await store.keys.signing_keys()
    if published and not await asyncio.to_thread(path.exists):
        raise InvalidConfigError(
            f"the signing key {str(path)!r} is missing, and {len(published)} keys are published; put it back, or run "
            "`soong keys adopt` to sign with a new one"
        )
    key = DeploymentKey(store, KeyFile(path), clock)
    await key.current()
    return key
