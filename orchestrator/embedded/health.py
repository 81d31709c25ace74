"""How the workers of an embedded service stand, as it says itself over its control socket."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.embedded.control import ask_once
from shared.errors import UnavailableError
from shared.jsontext import Json


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``starting`` workers are not ready yet; with ``is_hopeless`` none will be, and ``problem`` says why.

    ``functions`` are the modules of ``SOONG_FUNCTIONS`` that the service was started with, ``log`` is the file of its
    words if it knows one.
    """

    starting: int = 0
    is_hopeless: bool = False
    problem: str = ""
    functions: tuple[str, ...] = ()
    log: str = ""


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
        log=str(said.get("log") or ""),
    )


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
