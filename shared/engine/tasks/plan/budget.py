"""Bounds for what is made of a plan's references: one text, and all that a step or an expansion makes.

A plan of a few kilobytes can name a value a thousand times over, and write the result into a thousand steps. The cost
is counted during the work, so that the work is refused before it is done.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.errors import BudgetExceededError
from soong.shared.core.jsontext import MAX_DEPTH, Json

MIB: Final = 1024 * 1024
MAX_TEXT_BYTES: Final = 4 * MIB
"""The size of one text that references are written into, and of one value that is written as JSON."""
MAX_TOTAL_BYTES: Final = 64 * MIB
"""The size of everything made with one budget, such as the inputs of a step."""
MAX_EXPANSION_BYTES: Final = 128 * MIB
"""The size of all children of one map step: 10,000 of 13 KiB each."""
MAX_LOOKUPS: Final = 1_000_000
"""References that are looked up with one budget: some seconds of CPU time."""
_NOTED: Final = 1_000
"""Values that are larger are measured once for each budget."""
_encoded: Final = json.JSONEncoder().encode


@dataclass(slots=True)
class ExpansionBudget:
    """The remaining budget; one object for each step or expansion, used by one thread at a time.

    Sizes are those of values as ASCII JSON text, which is how they are stored and sent. Work is counted in lookups: a
    reference, an expression, or anything that takes as long. ``what`` names the result in the message.
    """

    what: str
    total: int = MAX_TOTAL_BYTES
    work: int = MAX_LOOKUPS
    spent: int = 0
    worked: int = 0
    _sizes: dict[int, tuple[Json, int, int]] = field(default_factory=dict, repr=False)
    """Size and depth of large values, by identity; each entry keeps its value, so that the identity stays its own."""

    @property
    def is_spent(self) -> bool:
        """Say whether something was refused because of it."""
        return self.spent > self.total or self.worked > self.work

    def step(self, lookups: int = 1) -> None:
        """Count work, whatever comes out of it. Raises: BudgetExceededError."""
        self.worked += lookups
        if self.worked > self.work:
            raise BudgetExceededError(f"{self.what} would take more than {self.work:,} lookups; refer to less")

    def spend(self, size: int) -> None:
        """Count something that is made. Raises: BudgetExceededError."""
        self.spent += size
        if self.spent > self.total:
            raise BudgetExceededError(
                f"{self.what} would take more than {self.total // MIB} MiB; use fewer or smaller values, "
                "or pass the name of a file in their place"
            )

    def check_text(self, size: int) -> None:
        """Hold one text to its bound before it is made. Raises: BudgetExceededError."""
        if size > MAX_TEXT_BYTES:
            raise BudgetExceededError(
                f"{self.what} would hold a text of more than {MAX_TEXT_BYTES // MIB} MiB; refer to less, or pass the "
                "value itself by a text that is exactly one reference"
            )

    def spend_text(self, size: int) -> None:
        """Count one text before it is made. Raises: BudgetExceededError."""
        self.check_text(size)
        self.spend(size)

    def size_of(self, value: Json) -> int:
        """Return about how long a value is as JSON text.
        Raises: BudgetExceededError when the budget could never hold it, or it is nested too deep to be written.
        """
        try:
            size, depth = self._measured(value)
        except RecursionError:
            size, depth = 0, MAX_DEPTH + 1
        if depth > MAX_DEPTH:
            raise BudgetExceededError(f"{self.what} would be nested deeper than {MAX_DEPTH} levels; nest less")
        return size

    def _measured(self, value: Json) -> tuple[int, int]:
        """Return size and depth; a text has the depth 0."""
        if not isinstance(value, Mapping | Sequence):
            return 8, 0
        noted = self._sizes.get(id(value))
        if noted is not None:
            return noted[1], noted[2]
        if isinstance(value, str):
            size, depth = len(value) + 2 if value.isascii() and value.isprintable() else len(_encoded(value)), 0
        else:
            parts = list(value.values() if isinstance(value, Mapping) else value)
            size, depth = 2 + len(parts), 1
            size += 3 * len(value) + sum(map(len, value)) if isinstance(value, Mapping) else 0
            for part in parts:
                part_size, part_depth = self._measured(part)
                size, depth = size + part_size, max(depth, part_depth + 1)
        if size > self.total:
            self.spend(size)
        if size > _NOTED:
            self._sizes[id(value)] = (value, size, depth)
        return size, depth
