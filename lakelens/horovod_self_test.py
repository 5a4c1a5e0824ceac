"""Averages, gathers and broadcasts with the installed Horovod in two processes on this machine.

    python -m lakelens.horovod_self_test

An import alone neither resolves every symbol nor opens a connection.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

SIZE = 2
# Below the time that `horovod_build` waits: a rank without the other one times out first.
_TIMEOUT_S = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both ranks, or one of them (`RANK`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _rank(int(arguments[0])) if arguments else _ranks()


def _ranks() -> int:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, "-m", "lakelens.horovod_self_test"]
    ranks = [
        subprocess.Popen([*command, str(rank)], env={**os.environ, **_environment(rank, server.server_port)})
        for rank in range(SIZE)
    ]
    try:
        return max(abs(rank.wait(timeout=2 * _TIMEOUT_S)) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
        server.shutdown()


def _environment(rank: int, port: int) -> dict[str, str]:
    """Returns what Horovod reads to find its place and the other rank."""
    values = {
        "RANK": rank,
        "SIZE": SIZE,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": SIZE,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
        "HOSTNAME": "localhost",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": "lo" if sys.platform == "linux" else "lo0",
        "GLOO_TIMEOUT_SECONDS": _TIMEOUT_S,
        "STALL_CHECK_TIME_SECONDS": _TIMEOUT_S // 2,
        "STALL_SHUTDOWN_TIME_SECONDS": _TIMEOUT_S,
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}


def _rank(rank: int) -> int:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    # NCCL refuses two ranks on one GPU: with fewer than two, Gloo alone is tried.
    tf.config.set_visible_devices(gpus[rank : rank + 1] if len(gpus) >= SIZE else [], "GPU")
    hvd.init()
    own = tf.fill([3], float(rank + 1))
    compiled = tf.function(lambda values: hvd.grouped_allreduce([values, 2 * values], op=hvd.Sum))
    found = [
        hvd.allreduce(own, op=hvd.Average),
        *compiled(own),
        hvd.allgather(own),
        hvd.broadcast(own, root_rank=1),
    ]
    wanted = [[1.5] * 3, [3.0] * 3, [6.0] * 3, [1.0] * 3 + [2.0] * 3, [2.0] * 3]
    values = [tensor.numpy().tolist() for tensor in found]
    hvd.shutdown()
    if values != wanted:
        sys.stderr.write(f"rank {rank} computed {values} instead of {wanted}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
