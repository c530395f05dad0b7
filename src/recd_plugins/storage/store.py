"""A store and how it is reached. After a fault, an operation is tried again, or the fault is
explained.

The AWS library inside Arrow retries by itself, request by request, with backoff and jitter, and
ends a request that stalls; Google's library retries too. For any other store, `tried` retries the
whole operation.
"""

from __future__ import annotations

import os
import posixpath
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from recd_plugins.errors import DataError, RecdError, nearest

if TYPE_CHECKING:
    from recd_plugins.storage.uri import Uri

__all__ = [
    "ARROWS",
    "AZURE",
    "OpenStore",
    "explained",
    "s3_endpoint_and_region",
    "store_of",
    "tried",
    "without",
]

R = TypeVar("R")

ATTEMPTS = 5
"""How often a request is made, unless the URI says `attempts`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before the second attempt; each pause is up to twice the one before."""
CONNECT, REQUEST = 5.0, 10.0
"""Seconds that connecting may take, and seconds that may pass without a byte."""
S3_OPTIONS = frozenset(
    {
        "access_key",
        "allow_bucket_creation",
        "anonymous",
        "attempts",
        "connect_timeout",
        "endpoint_override",
        "region",
        "request_timeout",
        "scheme",
        "secret_key",
        "session_token",
    }
)
GOOGLE, HADOOP, AZURE = ("gs", "gcs"), ("hdfs", "viewfs"), ("abfs", "abfss")
ARROWS = frozenset({*GOOGLE, *HADOOP, *AZURE})
"""The other schemes that Arrow reads by itself."""
GOOGLE_RETRIES = 30
"""Seconds for which Google's library tries again, unless the URI says `retry_limit_seconds`. The
library's own default is 15 minutes."""
CURES = {
    **dict.fromkeys(
        ("s3", "s3a"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile for s3, and AWS_ENDPOINT_URL for "
        "a store of one's own",
    ),
    **dict.fromkeys(
        GOOGLE,
        "GOOGLE_APPLICATION_CREDENTIALS names a JSON file of credentials; gs://anonymous@bucket "
        "asks without any; ?endpoint_override=HOST:PORT&scheme=http is a store of one's own",
    ),
    **dict.fromkeys(
        HADOOP,
        "JAVA_HOME, HADOOP_HOME with lib/native/libhdfs.so, CLASSPATH as `hadoop classpath --glob` "
        "prints it, and a ticket (kinit) where the cluster has Kerberos",
    ),
    **dict.fromkeys(
        AZURE,
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, and AZURE_CLIENT_ID, "
        "AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or `az login`",
    ),
}
"""How to reach a store, by scheme."""
OTHERS = "the options of the URI, which go to fsspec's package for its scheme"


@dataclass(frozen=True)
class OpenStore:
    """An open file system."""

    system: Any
    """A `pyarrow.fs.FileSystem`."""
    keys: bool
    """Whether it has no folders, only keys with common prefixes."""
    attempts: int
    """The number of times that `tried` tries."""
    container: str = ""
    """The beginning of a URI's path, if this file system's paths have another one."""
    top: str = ""
    """The other beginning."""
    secrets: tuple[str, ...] = ()
    """The texts that no message may contain."""

    def path(self, path: str) -> str:
        """The path of a URI as the file system has it."""
        if not self.container:
            return path
        return posixpath.join(self.top, path.removeprefix(self.container).lstrip("/"))


@lru_cache(maxsize=64)
def store_of(
    process: int, scheme: str, container: str, access: tuple[tuple[str, str], ...]
) -> OpenStore:
    """The store of a URI; a forked process opens its own."""
    options = dict(access)
    secrets = tuple(v for k, v in access if v and ("key" in k or "token" in k or "secret" in k))
    try:
        if scheme in ("s3", "s3a"):
            return _s3(options, secrets)
        if scheme in ARROWS:
            return _arrows(scheme, container, options, secrets)
        return _fsspecs(scheme, container, options, secrets)
    except RecdError:
        raise
    except (ImportError, OSError, ValueError, TypeError) as error:
        why = without(str(error), secrets).strip().split("\n")[0].rstrip(".")
        raise DataError(
            f"{scheme}://{container}: this store cannot be opened ({why}). Check that the scheme "
            "is right, that the package for it is installed, and how the store is reached: "
            f"{CURES.get(scheme, OTHERS)}."
        ) from None


def _s3(options: dict[str, str], secrets: tuple[str, ...]) -> OpenStore:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    for name in options:
        if name not in S3_OPTIONS:
            raise DataError(f"an S3 URI has no option {name!r}; {nearest(name, S3_OPTIONS)}")
    endpoint, region = s3_endpoint_and_region(options)
    parts = urlsplit(endpoint)
    system = S3FileSystem(
        access_key=options.get("access_key"),
        secret_key=options.get("secret_key"),
        session_token=options.get("session_token"),
        anonymous=options.get("anonymous", "").lower() in ("1", "true"),
        region=region or None,
        endpoint_override=parts.netloc or None,
        scheme=parts.scheme or options.get("scheme") or "https",
        connect_timeout=float(options.get("connect_timeout", CONNECT)),
        request_timeout=float(options.get("request_timeout", REQUEST)),
        retry_strategy=AwsStandardS3RetryStrategy(
            max_attempts=int(options.get("attempts", ATTEMPTS))
        ),
        allow_bucket_creation=options.get("allow_bucket_creation", "").lower() in ("1", "true"),
    )
    return OpenStore(system, keys=True, attempts=1, secrets=secrets)


def s3_endpoint_and_region(options: Mapping[str, str]) -> tuple[str, str]:
    """The URL of the user's own store, or an empty string for Amazon's; and the region. Both come
    from the URI, or else from the environment."""
    endpoint = options.get("endpoint_override") or os.environ.get(
        "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")
    )
    region = options.get("region") or os.environ.get(
        "AWS_REGION", os.environ.get("AWS_DEFAULT_REGION", "")
    )
    if not endpoint:
        return "", region
    named, _, host = endpoint.rpartition("://")
    # A user's own store has no regions, and Arrow need not ask Amazon for one.
    return f"{options.get('scheme') or named or 'https'}://{host}", region or "us-east-1"


def _arrows(
    scheme: str, container: str, options: dict[str, str], secrets: tuple[str, ...]
) -> OpenStore:
    from pyarrow.fs import FileSystem

    if scheme in GOOGLE:
        options.setdefault("retry_limit_seconds", str(GOOGLE_RETRIES))
    attempts = int(options.pop("attempts", 1 if scheme in GOOGLE else ATTEMPTS))
    user = ":".join(filter(None, (options.pop("user", ""), options.pop("secret_key", ""))))
    query = f"?{urlencode(options)}" if options else ""
    at = f"{user}@{container}" if user else container
    system, top = FileSystem.from_uri(f"{scheme}://{at}/{query}")
    hadoop = scheme in HADOOP
    return OpenStore(
        system,
        keys=not hadoop,
        attempts=attempts,
        container=container,
        top="/" if hadoop else top.strip("/"),  # a path of HDFS without / is below the user's home
        secrets=secrets,
    )


def _fsspecs(
    scheme: str, container: str, options: dict[str, str], secrets: tuple[str, ...]
) -> OpenStore:
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"{scheme}://{container}: Arrow has no store of this scheme, and fsspec, which may "
            "have it, is not installed: pip install fsspec."
        ) from None
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    attempts = int(options.pop("attempts", ATTEMPTS))
    system = fsspec.filesystem(scheme, **options)
    return OpenStore(
        PyFileSystem(FSSpecHandler(system)), keys=False, attempts=attempts, secrets=secrets
    )


def tried(work: Callable[[OpenStore], R], uri: Uri, store: OpenStore) -> R:
    """The result of the work, which is done again after faults that may pass. Raises `DataError`
    for a fault that does not pass. The caller has to explain a `FileNotFoundError`."""
    pause = FIRST_PAUSE
    for attempt in range(1, store.attempts + 1):
        try:
            return work(store)
        except FileNotFoundError:
            raise
        except OSError as error:
            if attempt == store.attempts or not _may_pass(error):
                raise explained(error, uri, store) from None
        time.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, LONGEST_PAUSE)
    raise AssertionError("a store is tried once at least")


MAY_PASS = re.compile(
    r"status 5\d\d|\b50[0234]\b|\b429\b|curlCode|NETWORK_CONNECTION|SLOW_DOWN|THROTTL|timed? ?out"
    r"|reset by peer|connection|temporar|unavailable|premature",
    re.IGNORECASE,
)
REFUSED = re.compile(
    r"ACCESS_DENIED|status 40[13]|\b40[13]\b|forbidden|INVALID_ACCESS_KEY|SIGNATURE|credential"
    r"|permission|INVALID_CLIENT_TOKEN|EXPIRED_TOKEN|access token",
    re.IGNORECASE,
)


def _may_pass(error: OSError) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return bool(MAY_PASS.search(str(error))) and not REFUSED.search(str(error))


def explained(error: OSError, uri: Uri, store: OpenStore) -> DataError:
    """A fault as it is shown to users: which URI, what was wrong, what to do."""
    why = without(str(error), store.secrets).partition(" error_info=")[0]  # Google's, once more
    why = why.strip().rstrip(".") or type(error).__name__
    cure = CURES.get(uri.scheme, OTHERS)
    if REFUSED.search(why) or isinstance(error, PermissionError):
        return DataError(
            f"{uri}: the store refuses access ({why}). Check that the credentials are right and "
            f"may read it: {cure}."
        )
    if _may_pass(error):
        return DataError(
            f"{uri}: the store fails or is out of reach, time and again ({why}). Check that it is "
            f"up and how it is reached: {cure}. Then start again; the option ?attempts=N of the "
            "URI tries more often."
        )
    return DataError(f"{uri}: cannot be reached ({why}). Check the URI and the store.")


def without(text: str, secrets: tuple[str, ...]) -> str:
    """The text with each secret replaced by stars."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
