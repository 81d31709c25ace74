"""The examples that are installed with Soong, and the code base that one of them audits (OPS-14)."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from soong.shared.core.errors import UsageError
from soong.shared.core.installation import PACKAGE
from soong.shared.core.value import Value

EXAMPLES: Final = PACKAGE / "examples"
START: Final = EXAMPLES / "init"
"""The files that a project begins with."""
AUDITED: Final = "celery"
"""A package that every installation has, for the audit to read."""
_SHOWN: Final = frozenset({".py", ".yaml", ".md"})


class Example(Value):
    """One plan, and the files that go with it: all of its own folder, or those next to it that have its name."""

    name: str
    plan: Path

    @property
    def summary(self) -> str:
        """Return what its first line says it shows."""
        first = self.plan.read_text(encoding="utf-8").partition("\n")[0]
        return first.removeprefix("#").strip()

    @property
    def files(self) -> tuple[Path, ...]:
        siblings = sorted(file for file in self.plan.parent.iterdir() if file.suffix in _SHOWN and file.is_file())
        if self.plan.parent == EXAMPLES:
            return tuple(file for file in siblings if file.stem == self.name)
        return tuple(siblings)


def examples() -> tuple[Example, ...]:
    plans = (*EXAMPLES.glob("*.yaml"), *(plan for plan in EXAMPLES.glob("*/*.yaml") if plan.stem == plan.parent.name))
    return tuple(sorted((Example(plan.stem, plan) for plan in plans), key=lambda one: one.name))


def example_named(name: str) -> Example:
    """Return an example. Raises: UsageError, naming those that there are."""
    known = {one.name: one for one in examples()}
    if name not in known:
        raise UsageError(f"there is no example {name!r}; choose one of {', '.join(known)}")
    return known[name]


def audited_package() -> Path:
    """Return the folder of a code base that is installed everywhere."""
    spec = find_spec(AUDITED)
    assert spec is not None, "it is a dependency of this program"
    assert spec.origin is not None, "a package with an __init__.py"
    return Path(spec.origin).parent
