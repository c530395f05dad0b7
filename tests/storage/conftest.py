"""One S3 endpoint for the tests of a worker, behind a proxy, with a bucket."""

from __future__ import annotations

import pytest

from benchmarks.s3_endpoint import s3_endpoint

BUCKET = "tables"


@pytest.fixture(scope="session")
def endpoint():
    with s3_endpoint() as proxy:
        yield proxy


@pytest.fixture
def store(endpoint, monkeypatch):
    """The proxy, in its place in the environment; its bucket is there."""
    from pyarrow.fs import S3FileSystem

    endpoint.forget()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "her-secret",
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    system = S3FileSystem(
        endpoint_override=endpoint.url.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    system.create_dir(BUCKET)
    endpoint.forget()
    yield endpoint
    endpoint.forget()
