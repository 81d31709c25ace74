"""Optional parts: packages that an installation may leave out. Code that opens a part imports it in such a block."""

from types import TracebackType

from soong.shared.core.log import get_logger

log = get_logger(__name__)


class OptionalPart:
    """A block that ends early when the package of its part is not installed. Other failures of imports are raised."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        is_left_out = isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith(f"{self._package}.")
        if is_left_out:
            log.info("part_left_out", package=self._package)
        return is_left_out
