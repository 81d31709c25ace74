"""How many worker processes an embedded service has: a number, or from one number to another as work asks for it."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from soong.shared.core.lazy_dataclass import dataclass

MOST: Final = 64
_FORM: Final = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """``least`` workers always, ``most`` when there is work for them. Both are the same for a fixed number."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"

    @classmethod
    def of(cls, value: object) -> "WorkerRange":
        """Read ``4`` or ``1-4``. Raises: PydanticCustomError, a ValueError."""
        if isinstance(value, WorkerRange):
            return value
        found = _FORM.fullmatch(str(value).strip())
        numbers = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= numbers[0] <= numbers[1] <= MOST:
            raise PydanticCustomError(
                "worker_range", "expected a number from 1 to {most}, or a range of such numbers: 1-4", {"most": MOST}
            )
        return cls(*numbers)


Workers = Annotated[WorkerRange, BeforeValidator(WorkerRange.of)]
