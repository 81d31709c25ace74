"""The import contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

from tests.spec_document import ROOT


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"

    checked = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
