"""What a check of ``soong doctor`` says."""

from enum import StrEnum

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Value):
    """What one check says. ``hint`` is empty when there is nothing to do."""

    check: str
    level: Level
    says: str
    hint: str = ""

    def as_json(self) -> dict[str, Json]:
        return {"check": self.check, "level": str(self.level), "says": self.says, "hint": self.hint}
