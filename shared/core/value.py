"""The base of values: objects with named, typed fields that never change, equal where their fields are equal.

:class:`msgspec.Struct` has their methods in C: a class costs microseconds at import, of which a short command needs
hundreds, and an instance a fraction of a data class's time. Objects that change are data classes of the standard
library.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, dataclass_transform

import msgspec
from msgspec import field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(msgspec.Struct, frozen=True):
    """Subclass it and annotate the fields; ``replace`` is :func:`msgspec.structs.replace`."""

    UNSHOWN: ClassVar[frozenset[str]] = frozenset()
    """Fields that :func:`repr` leaves out: secrets, and texts of any size."""

    def as_json(self) -> Mapping[str, Any]:
        """Return the fields as JSON, mappings of any class as objects; :func:`msgspec.convert` reads them."""
        fields: Mapping[str, Any] = msgspec.to_builtins(self, enc_hook=dict)
        return fields

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.UNSHOWN)
        return f"{type(self).__qualname__}({', '.join(shown)})"
