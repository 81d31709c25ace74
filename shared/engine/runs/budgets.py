"""Budgets of a session, a day and a task, and the charges that count against them (DIS-07, DIS-11).

A request is charged with an estimate before it is sent and with its usage afterwards. A charge that is open is reserved
while its run is running under the fence that made it: one whose process died counts as used, at its estimate. A request
is permitted while less than the budget is charged, so requests at once overspend by one estimate at most.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Protocol

from soong.shared.core.errors import InvalidConfigError, SoongError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import EndReason

DAY: Final = "day"
"""The scope of what all sessions together may use in a day of UTC."""
MICRO: Final = 1_000_000
WARN_AT: Final = 0.8
"""The share of a budget from which on its agents are asked to finish."""
MOST: Final = 2**53 - 1

_MONEY = re.compile(r"\$?([0-9]+(?:\.[0-9]+)?)\s*(?:usd|\$)?", re.IGNORECASE)
_TOKENS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([km]?)\s*(?:tok|tokens)", re.IGNORECASE)
_TIMES: Final = {"": 1, "k": 1000, "m": 1_000_000}


def session_scope(session_id: str) -> str:
    return f"session:{session_id}"


def task_scope(task_id: str) -> str:
    return f"task:{task_id}"


class Budget(Value):
    """At most so many tokens (read and written) and so many millionths of a US dollar; None: any number.

    A task also has limits in model turns and in time (microseconds).
    """

    tokens: int | None = None
    microusd: int | None = None
    turns: int | None = None
    wall_us: int | None = None

    def __str__(self) -> str:
        money = "" if self.microusd is None else f"{Decimal(self.microusd) / MICRO:f} USD"
        tokens = "" if self.tokens is None else f"{self.tokens:,} tokens"
        turns = "" if self.turns is None else f"{self.turns:,} model turns"
        wall = "" if self.wall_us is None else f"{self.wall_us / MICRO:g} s"
        return " and ".join(filter(None, (money, tokens, turns, wall))) or "no limit"


TASK_LIMIT: Final = "limit_exceeded"
"""The error type of a step whose task has reached a limit; the end reason of its run is one of LIMIT_ENDS."""
LIMIT_ENDS: Final = (EndReason.MAX_TURNS, EndReason.TOKEN_LIMIT, EndReason.COST_LIMIT, EndReason.TIME_LIMIT)
UNPRICED: Final = "no price is known for the model (set one in [prices] of config.toml), so the budget of"
NO_BUDGET: Final = Budget()


class Charge(Value):
    """The usage of a request, or its estimate; ``microusd`` None: the price of its model is unknown."""

    tokens: int = 0
    microusd: int | None = 0
    turns: int = 0
    """Model turns, counted for tasks with limits alone."""


class BudgetState(Value):
    """A budget with its charges: the usage, and the reservations of requests under way."""

    scope: str
    budget: Budget
    used: Charge
    reserved: Charge
    started_us: int | None = None
    """When the first step of a task with a limit of time started; None before."""

    @property
    def share(self) -> float:
        """Return the part of the nearest limit in tokens or money that is charged; 1 of a limit of 0."""
        return max(_share(charged, limit) for charged, limit in self._limits())

    def _limits(self) -> Sequence[tuple[int, int | None]]:
        money = (self.used.microusd or 0) + (self.reserved.microusd or 0)
        return (self.used.tokens + self.reserved.tokens, self.budget.tokens), (money, self.budget.microusd)

    def check(self, charge: Charge) -> None:
        """Say whether one more request may be charged. Raises: BudgetSpentError."""
        (tokens, most_tokens), (money, most_money) = self._limits()
        turns, most_turns = self.used.turns + self.reserved.turns, self.budget.turns
        if most_turns is not None and turns >= most_turns:
            raise self._spent("max_turns", "turns", f"{turns:,}", f"{most_turns:,} model turns", "")
        if most_tokens is not None and tokens >= most_tokens:
            held = f"{self.reserved.tokens:,}" if self.reserved.tokens else ""
            raise self._spent("tokens", "tokens", f"{self.used.tokens:,}", f"{most_tokens:,} tokens", held)
        if most_money is None:
            return
        if charge.microusd is None:
            words = f"{UNPRICED} {self._whose} cannot be kept"
            raise TaskLimitError("cost_usd", words, "money") if self._is_task else BudgetSpentError(words, "money")
        if money >= most_money:
            held = usd_text(self.reserved.microusd) if self.reserved.microusd else ""
            used = usd_text(self.used.microusd or 0)
            raise self._spent("cost_usd", "money", used, f"{usd_text(most_money)} USD", held)

    @property
    def _is_task(self) -> bool:
        return self.scope.startswith(task_scope(""))

    @property
    def _whose(self) -> str:
        return "the task" if self._is_task else "the day" if self.scope == DAY else "the session"

    def _spent(self, name: str, of: str, used: str, most: str, held: str) -> "BudgetSpentError":
        """Return the error for a limit that is used up, with what requests under way have reserved of it."""
        more = f"; requests under way reserve {held}" if held else ""
        if self._is_task:
            return TaskLimitError(name, f"{used} of {most} are used{more}", of)
        return BudgetSpentError(f"{self._whose} has used {used} of its budget of {most}{more}", of)


def _share(charged: int, limit: int | None) -> float:
    if limit is None:
        return 0.0
    return charged / limit if limit else 1.0


class BudgetSpentError(SoongError):
    """A request may not be sent: a budget is used up. ``of`` is ``tokens``, ``money`` or ``turns``."""

    code = "budget_exceeded"

    def __init__(self, message: str, of: str) -> None:
        super().__init__(message)
        self.of = of

    @property
    def end_reason(self) -> EndReason:
        """How a run ends that cannot continue without the request."""
        return _END_REASONS[self.of]


_END_REASONS: Final = {"tokens": EndReason.TOKEN_LIMIT, "money": EndReason.COST_LIMIT, "turns": EndReason.MAX_TURNS}


class TaskLimitError(BudgetSpentError):
    """A limit of the task is reached; ``name`` is the limit's in the plan."""

    code = TASK_LIMIT

    def __init__(self, name: str, message: str, of: str) -> None:
        super().__init__(limit_words(name, message), of)


def limit_words(name: str, message: str) -> str:
    """Return why a task ends that has reached a limit."""
    return f"the task has reached its limit {name}: {message}"


class TaskTime(Value):
    """The limits of a task that a worker checks before it starts a step.

    ``deadline_us`` is None without a limit of time. ``reached`` is why no step of it starts any more; empty while steps
    may.
    """

    wall_us: int | None
    deadline_us: int | None
    reached: str = ""


class StoppedTask(Value):
    """An open task that has reached a limit and has steps that nobody holds: they are to be cancelled."""

    session_id: str
    task_id: str
    reason: str


def time_words(wall_us: int) -> str:
    """Return why a task ends that has taken its time."""
    return limit_words("wall_s", f"its {wall_us / MICRO:g} s have passed")


class BudgetStore(Protocol):
    """Budgets and charges."""

    async def set_budget(self, scope: str, budget: Budget) -> None:
        """Set the budget of a scope (``day``, a session's or a task's); one without limits takes it away."""

    async def budgets(self, scopes: Sequence[str], *, day: str) -> Mapping[str, BudgetState]:
        """Return those of the scopes that have a budget; ``day`` is the date of UTC, such as ``2026-11-24``."""

    async def reserve(self, run_id: str, fence: int, number: int, charge: Charge, *, day: str) -> float | None:
        """Charge a request of a running run before it is sent; None, and nothing written, where no budget concerns it.

        ``number`` is the request's under this fence. Return the largest share of a budget that is charged by now.
        Raises: BudgetSpentError, a budget is used up; LeaseLostError, the fence is stale or the run is not running.
        """

    async def settle(self, run_id: str, fence: int, number: int, charge: Charge) -> None:
        """Put what a request used in the place of its estimate. Raises: LeaseLostError."""

    async def task_time(self, task_id: str) -> TaskTime | None:
        """Return what a worker must know of a task's limits; None where the task has none.

        Its time starts with its first step, and again with the first step after a retry of the task.
        """

    async def stopped_tasks(self, owner_id: str, *, now_us: int) -> Sequence[StoppedTask]:
        """Return the owner's open tasks that have reached a limit while steps of them wait, parked ones among them."""


def parse_budget(*words: str) -> Budget:
    """Read budgets as people write them: ``2usd``, ``0.50 USD``, ``$3``, ``200ktok``, ``1.5m tokens``, ``2usd,5mtok``.
    Raises: UsageError, one is neither money nor tokens, or there are two of a sort.
    """
    found: dict[str, int] = {}
    for text in words:
        for part in filter(None, re.split(r"[,+]", text)):
            name, amount = _amount(part.strip())
            if name in found:
                raise UsageError(f"the budget says {name} twice; say it once")
            found[name] = amount
    return Budget(found.get("tokens"), found.get("money"))


def _amount(text: str) -> tuple[str, int]:
    tokens, money = _TOKENS.fullmatch(text), _MONEY.fullmatch(text)
    if tokens is not None:
        name, amount = "tokens", int(Decimal(tokens[1]) * _TIMES[tokens[2].lower()])
    elif money is not None and (text.startswith("$") or not text[-1].isdigit()):
        name, amount = "money", int(Decimal(money[1]) * MICRO)
    else:
        raise UsageError(f"{text[:80]!r} cannot be read as a budget; write 2usd, 200ktok, or both: 2usd,200ktok")
    if amount > MOST:
        raise UsageError(f"the budget {text[:80]!r} is too large; leave it out for none")
    return name, amount


def state_json(state: BudgetState) -> dict[str, Json]:
    """Return a budget's state as programs see it: money in US dollars as text."""
    return {
        "scope": state.scope,
        "tokens": _facts(state.budget.tokens, state.used.tokens, state.reserved.tokens),
        "usd": _facts(_usd(state.budget.microusd), _usd(state.used.microusd or 0), _usd(state.reserved.microusd or 0)),
    }


def _facts(limit: Json, used: Json, reserved: Json) -> dict[str, Json]:
    return {"limit": limit, "used": used, "reserved": reserved}


def _usd(microusd: int | None) -> str | None:
    return None if microusd is None else usd_text(microusd)


def usd_text(microusd: int) -> str:
    """Return an amount in US dollars, with as many digits as it has."""
    return f"{Decimal(microusd) / MICRO:f}"


def charged_text(state: BudgetState) -> tuple[str, str]:
    """Return in words what of each limit is charged, in money and in tokens; empty where there is no limit."""
    limit, used, reserved = state.budget, state.used, state.reserved
    money, tokens = (used.microusd or 0) + (reserved.microusd or 0), used.tokens + reserved.tokens
    return (
        "" if limit.microusd is None else f"${money / MICRO:.4f} of ${usd_text(limit.microusd)}",
        "" if limit.tokens is None else f"{tokens:,} of {limit.tokens:,} tokens",
    )


def configured_budget(text: str, name: str) -> Budget:
    """Read a budget of the configuration. Raises: InvalidConfigError."""
    try:
        return parse_budget(text)
    except UsageError as error:
        raise InvalidConfigError(f"[budgets] {name}: {error}") from error
