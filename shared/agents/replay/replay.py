"""Plays a run again from its record: the real loop, with no model, no tool and nobody to ask (DAG-11).

The loop decides everything again from what it was given then: which calls it makes, in which order and groups, what it
refuses itself, when it asks again, makes its history shorter, falls back or ends. It departs from the record where the
program, the agent's definition or the configuration has changed what a run does.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.loop import run_agent
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.agents.replay.differences import Difference, differences
from soong.shared.agents.replay.lives import Life, RunRecord, lives_of
from soong.shared.agents.replay.recorded import RecordedCalls, ReplayedLog
from soong.shared.agents.replay.script import ModelScript, RecordedBudgets, RecordedModel, fallbacks_of
from soong.shared.agents.runtime.agent_task import ModelRules
from soong.shared.agents.runtime.without_secrets import clean_event, clean_node
from soong.shared.core.clock import SystemClock
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import Redactor

_ROUNDS: Final = 100
"""Of the event loop, after which everything that the record can answer at once has been answered."""


class ReplayedRun(Value):
    """What a replay found. Without differences the run would be the same again."""

    lives: int
    turns: int
    calls: int
    events: int
    differences: Sequence[Difference]


async def replay_run(record: RunRecord, task: AgentTask, rules: ModelRules, redactor: Redactor) -> ReplayedRun:
    """Play each life of a run from its record. ``task`` is the run's work as it would be given to a worker now."""
    found: list[Difference] = []
    turns = calls = events = 0
    lives = lives_of(record)
    for number, life in enumerate(lives, 1):
        log = await _played(record, life, task, rules)
        log.nodes_ = [clean_node(node, redactor) for node in log.nodes_]
        log.events = [clean_event(event, redactor) for event in log.events]
        found += differences(life, log, number)
        turns += sum(node.kind == "assistant" for node in log.nodes_)
        calls += len(log.ends)
        events += len(log.events)
    return ReplayedRun(len(lives), turns, calls, events, found)


async def _played(record: RunRecord, life: Life, task: AgentTask, rules: ModelRules) -> ReplayedLog:
    """Run the loop until it ends, or has done all that the record of the life has an answer to."""
    script, log = ModelScript.of(life), ReplayedLog(record, life)
    model = RecordedModel(task.identity.model, script)
    running = asyncio.ensure_future(
        run_agent(
            replace(task, is_streamed=False, is_resumed=bool(life.before)),
            model,
            RecordedCalls.of(task.tools, log, script),
            log,
            log,
            SystemClock(),
            sleep=_no_pause,
            budgets=RecordedBudgets(script),
            fallbacks=fallbacks_of(life, script, rules),
        )
    )
    stopped = asyncio.ensure_future(script.stopped.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        if running.done():
            _take_end(running.result(), log)
    finally:
        log.is_closed = True
        stopped.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(running, stopped, return_exceptions=True)
    return log


def _take_end(end: AgentEnd, log: ReplayedLog) -> None:
    log.nodes_ += end.nodes
    log.events += end.events


async def _no_pause(_seconds: float) -> None:
    """What was waited for then is not waited for again."""
