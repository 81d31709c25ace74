"""How the workers of an embedded service stand, as it says itself over its control socket."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.embedded.control import ask_once
from shared.errors import UnavailableError
from shared.jsontext import Json


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``starting`` workers are not ready yet; with ``is_hopeless`` none will be, and ``problem`` says why.

    ``functions`` are the modules of ``SOONG_FUNCTIONS`` that the service was started with, ``folders`` where it looks
    for them, ``log`` is the file of its words if it knows one.
    """

    starting: int = 0
    is_hopeless: bool = False
    problem: str = ""
    functions: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    log: str = ""

    @property
    def modules(self) -> str:
        """Its modules of step functions, for people."""
        return modules_text(self.functions, self.folders)


async def health_of(control: str | Path) -> ServiceHealth | None:
    """Ask the service; None when it does not answer: whoever keeps it alive finds out soon enough."""
    try:
        said = await ask_once(control, "status")
    except UnavailableError:
        return None
    return ServiceHealth(
        starting=_number(said.get("starting")),
        is_hopeless=said.get("is_hopeless") is True,
        problem=str(said.get("problem") or ""),
        functions=_texts(said.get("functions")),
        folders=_texts(said.get("folders")),
        log=str(said.get("log") or ""),
    )


def modules_text(functions: Sequence[str], folders: Sequence[str]) -> str:
    """Return the modules of SOONG_FUNCTIONS with where they are looked for."""
    return f"{', '.join(functions)} (in {', '.join(folders)})" if functions else "none"


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
