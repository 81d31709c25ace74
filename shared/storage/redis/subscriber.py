"""Ears over Redis: pub/sub for wake-ups, streams for permission traffic."""

from redis.asyncio import Redis

from soong.shared.engine.wire.events import OWNERS_CHANNEL, run_channel, session_channel, worker_channel
from soong.shared.engine.wire.notifier import Ear
from soong.shared.engine.wire.permissions import MAX_LENGTH, REQUESTS, decisions_of
from soong.shared.storage.redis.subscriptions import ChannelSource, RedisEar, StreamSource, sessions_of


class RedisSwitchboard:
    """Implements ``soong.shared.engine.wire.notifier.Switchboard``. ``client`` is the one for blocking reads.

    After an outage an ear of owners, questions or decisions reports an empty id, one of a worker or session its id.
    """

    def __init__(self, client: "Redis") -> None:
        self._client = client

    async def owner_ear(self) -> Ear:
        return await RedisEar.listen(ChannelSource(self._client, OWNERS_CHANNEL, sessions_of))

    async def permission_ear(self) -> Ear:
        return await RedisEar.listen(StreamSource(self._client, REQUESTS, "session", cut_to=MAX_LENGTH))

    async def worker_ear(self, worker_id: str) -> Ear:
        return await self._subject_ear(worker_channel(worker_id), worker_id)

    async def decision_ear(self, worker_id: str) -> Ear:
        return await RedisEar.listen(StreamSource(self._client, decisions_of(worker_id), "request"))

    async def session_ear(self, session_id: str) -> Ear:
        return await self._subject_ear(session_channel(session_id), session_id)

    async def run_ear(self, run_id: str) -> Ear:
        return await self._subject_ear(run_channel(run_id), run_id)

    async def _subject_ear(self, channel: str, subject: str) -> Ear:
        return await RedisEar.listen(
            ChannelSource(self._client, channel, lambda _payload: (subject,)), returned=subject
        )
