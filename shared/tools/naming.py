"""Names of tools: the canonical form, patterns over it, and the names for providers (REG-02, REG-04, REG-08).

A canonical name is dotted lower-case ASCII, so no two names look alike. Providers take fewer characters; a
:class:`NameTable` maps a run's names to theirs and back, and nothing but the model seam sees the provider's form.
"""

import hashlib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from soong.shared.core.errors import InvalidToolError

MAX_NAME_CHARS = 128
PROVIDER_PATTERN = r"[a-zA-Z0-9_-]+"
PROVIDER_MAX_CHARS = 64

_CANONICAL = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9_][a-z0-9_-]*)+", re.ASCII)
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_BORDER_UNDERSCORES = re.compile(r"^_+|_+$|__+")
_HASH_CHARS = 10


def check_name(name: str) -> None:
    """Hold a canonical name to its pattern. Raises: InvalidToolError, states the form of a name."""
    if len(name) > MAX_NAME_CHARS or not _CANONICAL.fullmatch(name):
        problem = (
            f"is not a canonical name: at least two parts of a-z, 0-9, '_' or '-' joined by single dots, "
            f"at most {MAX_NAME_CHARS} characters, such as 'code.read_file'"
        )
        raise InvalidToolError(name, problem)


def check_alias(tool: str, alias: str) -> None:
    """Hold an alias to plain ASCII. Raises: InvalidToolError, the alias could be mistaken for another name."""
    if len(alias) > MAX_NAME_CHARS or not _ALIAS.fullmatch(alias):
        raise InvalidToolError(tool, f"the alias {alias!r} is not made of ASCII letters, digits, '_', '-' and '.'")


def name_matches(pattern: str, name: str) -> bool:
    """Say whether a glob covers a canonical name; it is a glob over the full name, so ``*`` crosses dots."""
    return fnmatchcase(name, pattern)


class NameTable:
    """The names of one run for one provider, both ways. Injective by construction and checked all the same."""

    def __init__(
        self, names: Iterable[str], *, pattern: str = PROVIDER_PATTERN, max_length: int = PROVIDER_MAX_CHARS
    ) -> None:
        """Map every name.
        Raises: InvalidToolError, a name cannot be written in this provider's alphabet, or two would become one.
        """
        allowed = re.compile(pattern, re.ASCII)
        self._to_provider: dict[str, str] = {}
        self._to_canonical: dict[str, str] = {}
        for name in names:
            told = _provider_name(name, allowed, max_length)
            other = self._to_canonical.setdefault(told, name)
            if other != name:
                raise InvalidToolError(name, f"and {other!r} would both be {told!r} for this provider; rename one")
            self._to_provider[name] = told

    def to_provider(self, name: str) -> str:
        """Return what the provider calls a tool of this run. Raises: KeyError, the tool is not one of the run's."""
        return self._to_provider[name]

    def to_canonical(self, told: str) -> str:
        """Return the canonical name of what a provider sent; an unknown name comes back as it is, for the refusal."""
        return self._to_canonical.get(told, told)


def mangle(name: str) -> str:
    """Return ``a.b_c`` as ``a__b_c``: the dot becomes two underscores.

    Underscores that could be taken for a dot afterwards (doubled, or at the border of a part) become ``U``, which no
    canonical name contains; so different names stay different and :func:`unmangle` needs no table.
    """
    return "__".join(_BORDER_UNDERSCORES.sub(lambda run: "U" * len(run[0]), part) for part in name.split("."))


def unmangle(told: str) -> str:
    """Return the canonical name that :func:`mangle` made this of."""
    return told.replace("__", ".").replace("U", "_")


def _provider_name(name: str, allowed: re.Pattern[str], max_length: int) -> str:
    told = mangle(name)
    if len(told) <= max_length and allowed.fullmatch(told):
        return told
    suffix = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    plain = "".join(char if allowed.fullmatch(char) else "_" for char in told)
    told = f"{plain[: max(0, max_length - _HASH_CHARS - 1)]}_{suffix}"
    if len(told) > max_length or not allowed.fullmatch(told):
        raise InvalidToolError(
            name, f"cannot be said in the provider's names ({allowed.pattern}, {max_length} characters)"
        )
    return told
