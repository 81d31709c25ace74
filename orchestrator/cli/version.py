"""``soong version``: what runs here, for reports of problems."""

import platform
import sys
from importlib.metadata import version

import typer

from soong.orchestrator.cli.console import emit, output
from soong.shared.core.installation import DISTRIBUTION, INSTALL_ROOT


def command(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Show the version of this program, of Python, and where it is installed."""
    found = {
        "version": version(DISTRIBUTION),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "location": str(INSTALL_ROOT),
    }
    if is_json:
        emit(found)
        return
    output(f"soong {found['version']}")
    output(f"Python {found['python']} ({found['executable']}), {found['platform']}")
    output(f"installed in {found['location']}")
