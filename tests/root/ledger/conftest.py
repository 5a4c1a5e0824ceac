"""What the tests of the ledger share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import MISSING, S3Server, s3_server


@pytest.fixture(scope="package")
def server() -> Iterator[S3Server]:
    """An S3 server with conditional writes."""
    if MISSING:
        pytest.skip(f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'")
    with s3_server() as server:
        yield server
