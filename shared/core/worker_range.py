"""How many worker processes an embedded service has: a number, or from one number to another as work asks for it."""

import re
from typing import Final

from soong.shared.core.value import Value

MOST: Final = 64
_FORM: Final = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


class WorkerRange(Value):
    """``least`` workers always, ``most`` when there is work for them. Both are the same for a fixed number."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"

    @classmethod
    def of(cls, value: object) -> "WorkerRange":
        """Read ``4`` or ``1-4``. Raises: ValueError."""
        if isinstance(value, WorkerRange):
            return value
        found = _FORM.fullmatch(str(value).strip())
        numbers = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= numbers[0] <= numbers[1] <= MOST:
            raise ValueError(f"expected a number from 1 to {MOST}, or a range of such numbers: 1-4")
        return cls(*numbers)
