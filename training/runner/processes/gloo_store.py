"""The store through which Gloo's ranks find one another.

Gloo's client uses plain HTTP (PUT, GET, DELETE of `/scope/key`) and sends no secret. But it copies its address
unchanged into the URL, so an address of the form `127.0.0.1:PORT/SECRET` puts a secret into the path of every request
(source: horovod 0.28.1, common/gloo/http_store.h and third_party/HTTPRequest). Each store listens on the loopback
interface only, answers only requests with its secret, holds opaque bytes of bounded size and number, and closes once
all ranks have joined.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

LOOPBACK = "127.0.0.1"
# A value of Gloo holds the addresses of one rank for every other: about 150 bytes each.
MAX_VALUE_BYTES = 1 << 19
MAX_KEY_CHARACTERS = 512
# Six scopes (global, local, cross, each again for the process set) of two keys a rank, with a margin.
MAX_KEYS_PER_RANK = 256
MAX_REQUESTS_AT_ONCE = 512
REQUEST_TIMEOUT_S = 5.0
# Gloo polls every 10 ms for a missing key; waiting here saves work on both sides.
WAIT_FOR_KEY_S = 0.2


class _Handler(BaseHTTPRequestHandler):
    """Answers Gloo's client."""

    timeout = REQUEST_TIMEOUT_S
    server: LoopbackStore
    server_version = "lakelens"
    sys_version = ""

    def do_GET(self) -> None:
        key = self._key()
        if key is None:
            return
        # Gloo reads the host names ("rank_N") without waiting for them, and does not need them.
        value = self.server.get(key, 0.0 if "/rank_" in key else WAIT_FOR_KEY_S)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        key = self._key()
        if key is None:
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_VALUE_BYTES:
            self._answer(413)
            return
        value = self.rfile.read(length)
        if len(value) != length:
            self._answer(400)
            return
        self._answer(200 if self.server.put(key, value) else 507)

    def do_DELETE(self) -> None:
        # Gloo reports that a rank has finished with a scope. The store closes soon anyway.
        if self._key() is not None:
            self._answer(200)

    def _key(self) -> str | None:
        """Returns scope and key of a request that carries the secret; answers any other."""
        _, secret, *rest = unquote(self.path).split("/", 2) if self.path.startswith("/") else ("", "")
        if not hmac.compare_digest(secret.encode("utf-8", "replace"), self.server.prefix.encode()) or not rest:
            self._answer(403)
            return None
        return rest[0]

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps foreign requests out of the job's log."""


class LoopbackStore(ThreadingHTTPServer):
    """Opaque bytes by key for Gloo's client, on this host's loopback interface, bounded, for many threads."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = False
    request_queue_size = 256

    def __init__(self, size: int, on_put: Callable[[str, bytes], None] | None = None) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.port = self.server_port
        self._secret = secrets.token_hex(32)
        # Gloo appends ":PORT" to its address, and so to the secret at its end.
        self.prefix = f"{self._secret}:{self.port}"
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._most_keys = MAX_KEYS_PER_RANK * size
        self._on_put = on_put
        self._places = threading.BoundedSemaphore(MAX_REQUESTS_AT_ONCE)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="lakelens-store", daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Horovod finds this store."""
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{LOOPBACK}:{self.port}/{self._secret}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
        }

    def put(self, key: str, value: bytes, *, local: bool = True) -> bool:
        """Stores a value, of another host unless `local`; False if it, its key or their number is too large."""
        if len(key) > MAX_KEY_CHARACTERS or len(value) > MAX_VALUE_BYTES:
            return False
        with self._changed:
            if key not in self._values and len(self._values) >= self._most_keys:
                return False
            self._values[key] = value
            self._changed.notify_all()
        if local and self._on_put is not None:
            self._on_put(key, value)
        return True

    def get(self, key: str, wait_s: float = 0.0) -> bytes | None:
        """Returns a value, waiting up to `wait_s` for it; None if it is absent."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, timeout=wait_s)
            return self._values.get(key)

    def close(self) -> None:
        """Stops listening; called again it does nothing."""
        if self._thread.is_alive():
            self.shutdown()
            self.server_close()
            self._thread.join(timeout=5)

    # --- of the HTTP server ---------------------------------------------------------------------------------------

    def process_request(self, request: object, client_address: object) -> None:
        """Serves a bounded number of requests at once."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """Serves one request in its thread."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect during a request."""
