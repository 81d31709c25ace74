"""docker-compose.yml keeps what docs/security.md says of it, as far as its text shows."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HOME, DATA, KEYS, PROJECTS = "/var/lib/soong/home", "/var/lib/soong/data", "/var/lib/soong/keys", "/projects"
services = pytest.mark.parametrize("name", SERVICES)


def mounts(name: str) -> dict[str, str]:
    """Return how a service mounts what: ``ro`` or ``rw`` by path."""
    found = {}
    for volume in SERVICES[name].get("volumes", []):
        # The default of a variable has a colon, too.
        source, _, rest = volume.rpartition(":/")
        path, _, mode = f"/{rest}".partition(":")
        found[path] = mode or "rw"
        assert source, volume
    return found


@pytest.mark.spec("OPS-12")
@services
def test_no_container_has_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    # PostgreSQL's image begins as root and leaves that and these behind.
    becoming_postgres = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]
    assert service.get("cap_add", []) == (becoming_postgres if name == "postgres" else [])
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] <= 1024
    assert service["mem_limit"][-1] in "mg"
    # Ours have a user in the image.
    assert service["image"] == "soong:local" or name == "postgres" or service["user"] in ("redis", "10001:10001")
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


@pytest.mark.spec("OPS-12.b")
def test_what_decides_is_written_by_no_container_and_the_key_is_the_orchestrators() -> None:
    assert {name: mounts(name).get(HOME) for name in ("orchestrator", "worker", "api")} == {
        "orchestrator": "ro",
        "worker": "ro",
        "api": "ro",
    }
    assert {name for name in SERVICES if KEYS in mounts(name)} == {"orchestrator"}
    assert [name for name in SERVICES if mounts(name).get(HOME) == "rw"] == []
    assert "SOONG_SIGNING_KEY_FILE" in SERVICES["orchestrator"]["environment"]


@pytest.mark.spec("OPS-12.b")
def test_workers_write_data_and_projects_and_nothing_else() -> None:
    assert {path for path, mode in mounts("worker").items() if mode == "rw"} == {DATA, PROJECTS}
    assert {name: mounts(name).get(DATA) for name in SERVICES if DATA in mounts(name)} == {
        "orchestrator": "rw",
        "worker": "rw",
    }
    assert {name: mounts(name)[PROJECTS] for name in SERVICES if PROJECTS in mounts(name)} == {
        "orchestrator": "ro",
        "worker": "rw",
        "api": "ro",
    }


def test_the_image_says_where_both_places_are() -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text()

    assert f"SOONG_AGENT_HOME={HOME}" in image
    assert f"SOONG_DATA_DIR={DATA}" in image
    assert "mkdir -m 0700 home data keys" in image


@pytest.mark.spec("OPS-12")
def test_only_what_has_to_is_reached_from_outside_and_a_worker_reaches_nothing_there() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert COMPOSE["networks"]["inside"] == {
        "internal": True,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }
    assert published == {"api": ["127.0.0.1:8437:8437"], "flower": ["127.0.0.1:5555:5555"]}
    assert {name for name, service in SERVICES.items() if "outside" in service["networks"]} == {"api", "flower"}


def test_each_part_has_the_secrets_of_its_own_role_alone() -> None:
    roles = {"orchestrator": "orchestrator", "worker": "worker", "api": "client", "migrate": "owner"}
    for name, role in roles.items():
        sources = {secret["source"] for secret in SERVICES[name]["secrets"]}
        assert sources <= {f"database_url_{role}", f"redis_url_{role}"}, name


@pytest.mark.parametrize("name", ["redis", "postgres", "roles"])
def test_an_image_from_elsewhere_can_be_named_by_its_digest(name: str) -> None:
    image = SERVICES[name]["image"]

    assert image.startswith(("${REDIS_IMAGE:-redis:7", "${POSTGRES_IMAGE:-postgres:17"))
    assert "latest" not in image
