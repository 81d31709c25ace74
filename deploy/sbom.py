"""Prints what is installed in this environment as a software bill of materials (CycloneDX 1.6, JSON).

The same environment gives the same bytes: there is no time in it, and its number is made from its content. It needs
nothing but Python. The image has its output in /opt/soong/sbom.cdx.json.
"""

import json
import sys
import uuid
from importlib.metadata import Distribution, distributions
from typing import Any

PROGRAM = "soong-agents"


def component(found: Distribution) -> dict[str, Any]:
    """Return one installed distribution."""
    name, version = normal(found.metadata["Name"]), found.version
    purl = f"pkg:pypi/{name}@{version}"
    part: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence := found.metadata.get("License-Expression"):
        part["licenses"] = [{"expression": licence}]
    return part


def normal(name: str) -> str:
    """Return a name as package indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def bill() -> dict[str, Any]:
    """Return the bill of this environment."""
    parts = sorted(
        {each["purl"]: each for each in map(component, distributions())}.values(), key=lambda one: one["purl"]
    )
    own = [part for part in parts if part["name"] == PROGRAM]
    others = [part for part in parts if part["name"] != PROGRAM]
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": {**own[0], "type": "application"}} if own else {},
        "components": others,
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    sys.stdout.write("\n")
