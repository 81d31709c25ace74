"""Subscriptions over Redis: pub/sub for wake-ups, streams for permission traffic."""

from redis.asyncio import Redis

from soong.shared.engine.wire.answers import answer_channel
from soong.shared.engine.wire.events import OWNERS_CHANNEL, run_channel, session_channel, worker_channel
from soong.shared.engine.wire.notifier import Subscription
from soong.shared.engine.wire.permissions import MAX_LENGTH, REQUESTS, decisions_of
from soong.shared.storage.redis.direct_connection import DirectConnection
from soong.shared.storage.redis.subscriptions import (
    ChannelSource,
    RedisSubscription,
    StreamSource,
    called,
    sessions_of,
)

ANSWER_PIECES_KEPT = 200
"""Of a reader that does not keep up; older pieces are lost to it."""


class RedisSubscriber:
    """Implements ``soong.shared.engine.wire.notifier.Subscriber``. ``client`` is the one for blocking reads.

    After an outage a subscription to a worker or to a session reports its id, any other subscription an empty id.
    """

    def __init__(self, client: "Redis") -> None:
        self._client = client
        self._idle: list[DirectConnection] = []

    async def subscribe_owner(self) -> Subscription:
        return await RedisSubscription.listen(ChannelSource(self._client, OWNERS_CHANNEL, sessions_of))

    async def subscribe_permissions(self) -> Subscription:
        return await RedisSubscription.listen(StreamSource(self._client, REQUESTS, "session", cut_to=MAX_LENGTH))

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        source = ChannelSource(self._client, worker_channel(worker_id), lambda payload: called(payload, worker_id))
        return await RedisSubscription.listen(source, returned=worker_id)

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        return await RedisSubscription.listen(
            StreamSource(self._client, decisions_of(worker_id), "request", "decision")
        )

    async def subscribe_session(self, session_id: str) -> Subscription:
        return await self._subject_subscription(session_channel(session_id), session_id)

    async def subscribe_run(self, run_id: str) -> Subscription:
        return await self._subject_subscription(run_channel(run_id), run_id)

    async def subscribe_answer(self, run_id: str) -> Subscription:
        source = ChannelSource(self._client, answer_channel(run_id), lambda payload: (payload,))
        return await RedisSubscription.listen(source, keep=ANSWER_PIECES_KEPT)

    async def _subject_subscription(self, channel: str, subject: str) -> Subscription:
        source = ChannelSource(self._client, channel, lambda _payload: (subject,), idle=self._idle)
        return await RedisSubscription.listen(source, returned=subject)
