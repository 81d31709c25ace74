"""A service whose artifacts are in a bucket: workers put them there, the orchestrator takes them from there."""

from pathlib import Path

import pytest

from soong.orchestrator.client.bootstrap import open_artifacts
from soong.orchestrator.doctor.machine import Level, check_artifacts
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.storage.s3_artifacts import S3Artifacts
from tests.s3_server import CREDENTIALS, s3_server
from tests.scripted import call, calls
from tests.system.deployment import Deployment

pytestmark = pytest.mark.spec("EVT-04.b")


async def test_a_deliverable_goes_through_the_bucket_and_no_artifact_is_on_the_disk(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as address:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SOONG_ARTIFACTS_URL", "s3://soong-artifacts/team")
        store = open_artifacts(load_settings())
        assert isinstance(store, S3Artifacts)
        missing = await check_artifacts(load_settings())
        store._opened().create_bucket(Bucket="soong-artifacts")
        project = tmp_path / "project"
        project.mkdir()
        extra = {"artifacts_url": "s3://soong-artifacts/team"}
        async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis_url, tmp_path, extra) as service:
            await service.start_workers(1)
            step = {
                "id": "write",
                "instructions": "x",
                "allowed_tools": ["code.write_file"],
                **calls(call("code.write_file", path="report.md", content="a report")),
            }
            task = await service.submit(
                {"title": "s3", "steps": [step]}, project=project, allow=(f"code.write_file:{project}",)
            )
            ended = await service.finished(task)
            run_id = (await service.steps(task))["write"].run_id
            delivered = service.settings.runs / run_id / "deliverables" / "report.md"

            async def is_there() -> bool:
                return delivered.is_file()

            await service.until(is_there)

        listed = list(store.stored())
        found = await check_artifacts(load_settings())

    assert ended.status is TaskStatus.COMPLETED
    assert delivered.read_text() == "a report"
    assert [one.size_bytes for one in listed] == [8]
    assert not service.settings.data.joinpath("artifacts").exists()
    assert (missing.level, found.level) == (Level.FAIL, Level.OK)
    assert "NoSuchBucket" in missing.says
