import asyncio
from dataclasses import dataclass, field

import pytest
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ToolCallPart

from soong.shared.agents.runtime.broadcast import AnswerBroadcast
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.engine.wire.notifier import AnswerDelta, delta_of
from soong.shared.sandbox.redact import redactor
from tests.waiting import others_run

SECRET = "sk-" + "a1B2" * 8


@dataclass
class Audience:
    """A bus that counts what is sent, and a viewer who may listen to it."""

    bus: MemoryBus = field(default_factory=MemoryBus)
    sent: list[AnswerDelta] = field(default_factory=list)
    shown: str = ""
    turn: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish_answer(self, run_id: str, payload: str) -> int:
        delta = delta_of(payload)
        assert delta is not None
        self.sent.append(delta)
        return await self.bus.publish_answer(run_id, payload)

    def __getattr__(self, name: str) -> object:
        return getattr(self.bus, name)

    async def watch(self) -> None:
        subscription = await self.bus.subscribe_answer("run_1")
        while True:
            for payload in await subscription.wait(60):
                delta = delta_of(payload)
                assert delta is not None
                self.shown = delta.applied_to(self.shown if delta.turn == self.turn else "")
                self.turn = delta.turn
                self.changed.set()

    async def until(self, text: str) -> None:
        async with asyncio.timeout(10):
            while self.shown != text:
                await self.changed.wait()
                self.changed.clear()


def broadcast(audience: Audience, **pauses: float) -> AnswerBroadcast:
    pauses = {"every_s": 0.001, "unheard_every_s": 0.001, **pauses}
    one = AnswerBroadcast(audience, redactor(), "run_1", **pauses)  # type: ignore[arg-type]  # a notifier by __getattr__
    one.begin(1)
    return one


def say(one: AnswerBroadcast, text: str) -> None:
    one.take(PartDeltaEvent(index=0, delta=TextPartDelta(text)))


async def test_a_viewer_sees_an_answer_grow_and_end() -> None:
    audience = Audience()
    watching = asyncio.create_task(audience.watch())
    await others_run()
    one = broadcast(audience)

    one.take(PartStartEvent(index=0, part=TextPart("Hello ")))
    await audience.until("Hello ")
    say(one, "world, how ")
    await audience.until("Hello world, how ")
    one.take(PartStartEvent(index=1, part=ToolCallPart("code__read_file", {})))
    say(one, "are you?")
    one.complete()
    await audience.until("Hello world, how are you?")

    assert audience.sent[-1].calls == ("code.read_file",)
    assert audience.sent[-1].is_complete
    watching.cancel()
    await one.close()


@pytest.mark.spec("EVT-05")
async def test_a_secret_is_never_on_the_channel() -> None:
    audience = Audience()
    watching = asyncio.create_task(audience.watch())
    await others_run()
    one = broadcast(audience)

    for letter in f"the key is {SECRET} ok":
        say(one, letter)
        await asyncio.sleep(0.002)
    one.complete()
    await audience.until("the key is [redacted] ok")

    assert not any("a1B2" in delta.text for delta in audience.sent)
    watching.cancel()
    await one.close()


@pytest.mark.spec("DIS-12.a")
async def test_what_was_shown_of_a_broken_answer_is_taken_back() -> None:
    audience = Audience()
    watching = asyncio.create_task(audience.watch())
    await others_run()
    one = broadcast(audience)
    say(one, "the first try ")
    await audience.until("the first try ")

    await one.discard()
    await audience.until("")
    say(one, "the second ")

    await audience.until("the second ")
    watching.cancel()
    await one.close()


async def test_while_nobody_listens_no_text_is_sent() -> None:
    audience = Audience()
    one = broadcast(audience, unheard_every_s=60)

    for _ in range(1000):
        say(one, "words ")
        await others_run()
    one.complete()
    await others_run()

    assert [(delta.at, delta.text) for delta in audience.sent] == [(0, "")]
    await one.close()


@pytest.mark.parametrize(
    "payload",
    [
        "no json",
        "[]",
        "{}",
        '{"turn":-1,"at":0,"text":""}',
        '{"turn":true,"at":0,"text":""}',
        '{"turn":1,"at":0}',
        '{"turn":1,"at":0,"text":"","calls":7}',
        "[" * 100_000,
    ],
)
def test_what_is_no_piece_is_left_out(payload: str) -> None:
    assert delta_of(payload) is None


def test_a_gap_is_shown_as_one() -> None:
    assert AnswerDelta(1, 10, "later").applied_to("early") == "… later"
