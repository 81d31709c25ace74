"""What the models of running steps are writing, for a display that shows it."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.cli.display import Display
from soong.orchestrator.cli.narration import GrowingAnswer
from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.orchestrator.client.live_run import listen_to_answers
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.wire.answers import AnswerDelta

MOST: Final = 4
"""Each takes a connection to Redis, and nobody reads more than a few."""


@dataclass(slots=True)
class StepVoices:
    """Listens to the first few running agents of a task. Its user calls :meth:`close`."""

    client: Client
    display: Display
    _listening: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def follow(self, view: TaskSnapshot) -> None:
        """Listen to those that run now."""
        if not self.display.shows_answers:
            return
        running = [
            step.run_id for step in view.steps if step.status is StepStatus.RUNNING and step.kind.traits.is_agent
        ]
        for run_id in [one for one in self._listening if one not in running]:
            self._listening.pop(run_id).cancel()
            self.display.speak(run_id, "")
        for run_id in running:
            if len(self._listening) < MOST and run_id and run_id not in self._listening:
                self._listening[run_id] = asyncio.create_task(self._listen(run_id))

    async def _listen(self, run_id: str) -> None:
        growing = GrowingAnswer()

        def take(delta: AnswerDelta) -> None:
            self.display.speak(run_id, growing.take(delta))

        await listen_to_answers(self.client.subscriber, run_id, take)

    async def close(self) -> None:
        """Listen no more."""
        listening = list(self._listening.values())
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
