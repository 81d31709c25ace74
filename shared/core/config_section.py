"""What every section of ``config.toml`` has in common: it is closed, frozen, and converts nothing in silence."""

from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=600)]
MAX_WAIT_S: Final = 31_536_000
"""A year: longer times are mistakes, and some of them no clock can count."""


class ConfigSection(BaseModel):
    """One table of the configuration. Its validator is built when a file is read: most homes have none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
