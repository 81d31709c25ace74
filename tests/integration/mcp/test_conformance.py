"""The official conformance suite of MCP against our client: the pool, the pipeline and what they make of a server."""

import asyncio
import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

from tests.extra import acp_node, mcp_modules

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240), pytest.mark.spec("MCP-01.a", "MCP-01.b")]

ROOT: Final = Path(__file__).parents[3]
CLIENT: Final = ROOT / "tests" / "mcp" / "suite_client.py"
BOTH: Final = ("2025-11-25", "2026-07-28")
_LOGINS: Final = (
    *("metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "pre-registration"),
    *("scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined"),
    *("scope-step-up", "scope-retry-limit"),
    *("token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none"),
)
_LOGINS_OF_NOW: Final = (
    *("resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration"),
    *("iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected"),
    *("iss-normalized", "metadata-issuer-mismatch"),
)
PASSED: Final[dict[str, tuple[str, ...]]] = {
    "elicitation-sep1034-client-defaults": BOTH[:1],
    "initialize": BOTH[:1],
    "sse-retry": BOTH[:1],
    "tools_call": BOTH,
    "json-schema-2020-12-preservation": BOTH,
    "json-schema-ref-no-deref": BOTH[1:],
    "request-metadata": BOTH[1:],
    "sep-2322-client-request-state": BOTH[1:],
    "http-standard-headers": BOTH[1:],
    "http-custom-headers": BOTH[1:],
    "http-invalid-tool-headers": BOTH[1:],
    **{f"auth/{name}": BOTH for name in _LOGINS},
    **{f"auth/{name}": BOTH[1:] for name in _LOGINS_OF_NOW},
    "auth/2025-03-26-oauth-metadata-backcompat": ("2025-03-26",),
    "auth/2025-03-26-oauth-endpoint-fallback": ("2025-03-26",),
}
NOT_PASSED: Final = {
    "auth/client-credentials-*": "an extension: a login without a person, which Soong does not offer",
    "auth/enterprise-managed-authorization": "an extension: a login by a company's identity provider, not offered",
    "auth/dpop*": "an extension: tokens bound to a key (RFC 9449), which the SDK (2.3.0) does not implement",
    "auth/wif-jwt-bearer": "an extension: a login by the identity of a workload, not offered",
    "sep-2640-*": "an extension, skills over MCP, that Soong does not offer",
}


async def suite(*arguments: str) -> tuple[int | None, str]:
    """Run the suite and return its exit code and what it said."""
    program = mcp_modules() / "@modelcontextprotocol/conformance/dist/index.js"
    process = await asyncio.create_subprocess_exec(
        *[acp_node(), str(program), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("scenario", "revision"), [(name, revision) for name, revisions in PASSED.items() for revision in revisions]
)
async def test_our_client_passes_the_scenario(scenario: str, revision: str) -> None:
    command = f"{sys.executable} -P {CLIENT}"

    code, said = await suite(
        "client", "--command", command, "--scenario", scenario, "--spec-version", revision, "--timeout", "120000"
    )

    assert (code, "OVERALL: PASSED" in said) == (0, True), said[-6000:]


async def test_every_scenario_is_either_passed_or_left_out_for_a_reason() -> None:
    _, said = await suite("list")
    listed = re.findall(
        r"^  - (\S+) ", said.partition("Client scenarios")[2].partition("Authorization server")[0], re.MULTILINE
    )

    unknown = [name for name in listed if name not in PASSED and not any(fnmatchcase(name, one) for one in NOT_PASSED)]

    assert len(listed) > len(PASSED)
    assert unknown == []
