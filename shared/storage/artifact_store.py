"""The artifact store of a deployment, as SOONG_ARTIFACTS_URL names it (EVT-04)."""

from soong.shared.core.settings import ARTIFACTS, Settings
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import ArtifactFiles, FolderArtifacts


def open_artifact_store(settings: Settings) -> ArtifactFiles:
    """Return the store: a folder of the data folder, or a bucket, which is not connected yet.
    Raises: InvalidConfigError, the URL names no bucket, or its client is not installed.
    """
    if not settings.artifacts_url:
        return FolderArtifacts(RootedFolder(settings.data, ARTIFACTS))
    from soong.shared.storage.s3_artifacts import S3Artifacts, parse_bucket, require_client

    bucket = parse_bucket(settings.artifacts_url)
    require_client()
    return S3Artifacts(bucket)
