"""Garbage collection of artifacts that are in a bucket."""

import dataclasses

import pytest
from msgspec.structs import replace

from soong.orchestrator.retention.collector import RetentionLimits
from soong.shared.engine.runs.events import NewEvent
from soong.shared.storage.s3_artifacts import Bucket, S3Artifacts
from tests.integration.gc.place import DAY_US, Place
from tests.s3_server import CREDENTIALS, s3_server


@pytest.mark.spec("OPS-10.a", "OPS-10.c", "EVT-04.b")
async def test_artifacts_in_a_bucket_go_once_no_row_names_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
            monkeypatch.setenv(name, value)
        bucket = S3Artifacts(Bucket("artifacts", "soong/"))
        bucket._opened().create_bucket(Bucket="artifacts")
        named, nobodys = await bucket.put(b"named"), await bucket.put(b"of nobody")
        await place.ended_task(events=(NewEvent("tool_completed", {"artifacts": [named.digest]}),))
        collector = dataclasses.replace(place.collector, artifacts=bucket)

        young = await collector.collect(RetentionLimits(0))
        orphans = await collector.collect(RetentionLimits(0, grace_s=-60 * DAY_US))
        left = [one.digest for one in bucket.stored()]
        done = await collector.collect(replace(place.all_ended, grace_s=-60 * DAY_US))

        assert (young.artifacts, orphans.artifacts, orphans.file_bytes) == (0, 1, nobodys.size_bytes)
        assert left == [named.digest]
        assert (done.tasks, done.artifacts) == (1, 1)
        assert list(bucket.stored()) == []
