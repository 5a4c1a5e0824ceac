"""A real S3 server in a process of its own, which tests may stop like one that hangs."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import ending_with_this_process, found_in_log

ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "a-very-secret-key"
BUCKET = "images"
# Packages that the server and its client need and this environment lacks.
MISSING = [name for name in ("obstore", "boto3", "moto", "flask_cors") if importlib.util.find_spec(name) is None]


@dataclass
class S3Server:
    """A running server with one bucket."""

    process: subprocess.Popen[bytes]
    endpoint: str

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true",
        }

    @functools.cached_property
    def bucket(self) -> Any:
        """boto3's view of the bucket, which is not the client that lakelens reads with."""
        import boto3

        access = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        return boto3.resource("s3", endpoint_url=self.endpoint, **access).Bucket(BUCKET)

    def put(self, key: str, data: bytes) -> None:
        self.bucket.put_object(Key=key, Body=data)

    def get(self, key: str) -> bytes:
        return self.bucket.Object(key).get()["Body"].read()

    def remove(self, prefix: str) -> None:
        """Removes the objects whose keys start with a prefix."""
        self.bucket.objects.filter(Prefix=prefix).delete()

    def upload(self, folder: Path, name: str) -> str:
        """Puts a table into the bucket; gives its URI."""
        for file in (path for path in folder.rglob("*") if path.is_file()):
            self.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{BUCKET}/{name}"

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Keeps the server from answering: its process stands still, its port stays open."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Starts a server on a free port of this machine, and ends it."""
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        command = ending_with_this_process(command)
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "AWS_ACCESS_KEY_ID": "x"})
        try:
            port = found_in_log(r"Running on http://127\.0\.0\.1:(\d+)\s", Path(log.name), process, 60)
            server = S3Server(process, f"http://127.0.0.1:{port}")
            server.bucket.create()
            yield server
        finally:
            process.kill()
            process.wait()
