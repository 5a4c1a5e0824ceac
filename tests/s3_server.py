"""A real S3 server in a process of its own, which tests may stop like one that hangs."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "a-very-secret-key"
BUCKET = "images"
# Packages that the server and its client need and this environment lacks.
MISSING = [name for name in ("s3fs", "moto", "flask_cors") if importlib.util.find_spec(name) is None]


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

    @property
    def files(self) -> Any:
        """A client for putting objects there and taking them away."""
        import s3fs

        return s3fs.S3FileSystem(
            key=ACCESS_KEY,
            secret=SECRET_KEY,
            endpoint_url=self.endpoint,
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def upload(self, folder: Path, name: str) -> str:
        """Puts a table into the bucket; gives its URI."""
        for file in (path for path in folder.rglob("*") if path.is_file()):
            self.files.pipe_file(f"{BUCKET}/{name}/{file.relative_to(folder)}", file.read_bytes())
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
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "AWS_ACCESS_KEY_ID": "x"})
        try:
            server = S3Server(process, f"http://127.0.0.1:{_port(process, Path(log.name))}")
            server.files.mkdir(BUCKET)
            yield server
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    ended = threading.Event()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"Running on http://127\.0\.0\.1:(\d+)\s", log.read_text())
        if found:
            return int(found.group(1))
        ended.wait(0.05)
    raise RuntimeError(f"the S3 server did not start: {log.read_text()}")
