"""What every section of ``config.toml`` has in common: it is closed, frozen, and converts nothing in silence."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=600)]


class ConfigSection(BaseModel):
    """One table of the configuration. Its validator is built when a file is read: most homes have none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
