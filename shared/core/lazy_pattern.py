"""Regular expressions that are compiled at their first use: some take a millisecond, and few commands use them."""

import re
from typing import Any, AnyStr, Generic, cast


def lazy_pattern(text: AnyStr, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[AnyStr]:
    """Return what :func:`re.compile` returns, as far as its methods and attributes are used."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


class _LazyPattern(Generic[AnyStr]):
    """Stands for a pattern. Each method is looked up once; then it is an attribute of its own."""

    def __init__(self, text: AnyStr, flags: re.RegexFlag) -> None:
        self._text: AnyStr = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found
