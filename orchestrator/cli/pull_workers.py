"""What pull workers play on the model ``script``, read from a file."""

from collections.abc import Sequence
from pathlib import Path

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.document import read_document


def read_script(path: Path) -> Sequence[Json]:
    """Return the statements of a script file. Raises: UsageError; InvalidPlanError for text that is not YAML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the script {path} cannot be read: {error}; name a readable YAML or JSON file") from error
    value = read_document(text, str(path)).value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"{path} is not a list of statements; docs/plans.md says how scripts are written")
    return value
