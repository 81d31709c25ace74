"""A document as JSON values with their lines, for readers of plans and definitions.

How text becomes a document is :mod:`soong.shared.engine.tasks.plan.yaml_document`.
"""

from dataclasses import dataclass

from soong.shared.core.jsontext import Json
from soong.shared.core.texts import dotted
from soong.shared.core.value import Value
from soong.shared.engine.tasks.problems import Path

MAX_CHARS = 4 * 1024 * 1024


@dataclass(slots=True)
class Lines:
    """The line of a collection and of each of its parts, by key or index; a part that is not a collection is its line.

    A tree, and no table of paths: a path for each of a million numbers in a deep list takes half a gigabyte.
    """

    line: int
    parts: "dict[str, int | Lines] | list[int | Lines] | None" = None

    def add(self, key: str | None, line: "int | Lines") -> None:
        """Note a part: the next of a list, or by its key."""
        if key is None:
            self.parts = self.parts if isinstance(self.parts, list) else []
            self.parts.append(line)
        else:
            self.parts = self.parts if isinstance(self.parts, dict) else {}
            self.parts[key] = line

    def of(self, part: str | int) -> "int | Lines | None":
        if isinstance(self.parts, dict) and isinstance(part, str):
            return self.parts.get(part)
        if isinstance(self.parts, list) and isinstance(part, int) and 0 <= part < len(self.parts):
            return self.parts[part]
        return None


class Document(Value):
    """A value with the line of each of its parts. ``source`` is the name shown to people, usually the file's path."""

    source: str
    value: Json
    lines: Lines | None = None

    def line(self, path: Path) -> int:
        """Return the line of a part, or of the nearest part around it that has one; 0 when there are no lines."""
        at = self.lines
        if at is None:
            return 0
        for part in path:
            found = at.of(part)
            if not isinstance(found, Lines):
                return found or at.line
            at = found
        return at.line

    def place(self, path: Path) -> str:
        """Return ``file:line path`` for a part, or for the nearest part around it that has a line."""
        line = self.line(path)
        where = f"{self.source}:{line}" if line else self.source
        return f"{where} {dotted(path)}" if path else where
