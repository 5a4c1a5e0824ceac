"""Averages, gathers and broadcasts with the installed Horovod in two processes: an import alone opens no connection."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

_TIMEOUT_S = 120  # below the time that `horovod_build` waits: a rank without the other one times out first
_SETTINGS = {"SIZE": 2, "LOCAL_SIZE": 2, "CROSS_RANK": 0, "CROSS_SIZE": 1, "HOSTNAME": "localhost"}
_SETTINGS |= {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_TIMEOUT_SECONDS": _TIMEOUT_S}
_SETTINGS |= {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_IFACE": "lo" if sys.platform == "linux" else "lo0"}


def _run_ranks() -> int:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ranks = []
    for rank in range(2):
        own = {**_SETTINGS, "RANK": rank, "LOCAL_RANK": rank, "GLOO_RENDEZVOUS_PORT": server.server_port}
        environment = os.environ | {f"HOROVOD_{name}": str(value) for name, value in own.items()}
        ranks.append(subprocess.Popen([sys.executable, "-m", "lakelens.horovod_self_test", "rank"], env=environment))
    try:
        return max(abs(rank.wait(timeout=2 * _TIMEOUT_S)) for rank in ranks)
    finally:
        for one in ranks:
            one.kill()
        server.shutdown()


def _run_rank() -> str | None:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    rank, gpus = int(os.environ["HOROVOD_RANK"]), tf.config.list_physical_devices("GPU")
    # NCCL refuses two ranks on one GPU: with fewer than two, Gloo alone is tried.
    tf.config.set_visible_devices(gpus[rank : rank + 1] if len(gpus) >= 2 else [], "GPU")
    hvd.init()
    own = tf.fill([3], rank + 1.0)
    compiled = tf.function(lambda values: hvd.grouped_allreduce([values, 2 * values], op=hvd.Sum))
    found = [hvd.allreduce(own, op=hvd.Average), *compiled(own), hvd.allgather(own), hvd.broadcast(own, root_rank=1)]
    values = [tensor.numpy().tolist() for tensor in found]
    hvd.shutdown()
    wanted = [[1.5] * 3, [3.0] * 3, [6.0] * 3, [1.0] * 3 + [2.0] * 3, [2.0] * 3]
    return None if values == wanted else f"rank {rank} computed {values} instead of {wanted}"


if __name__ == "__main__":
    sys.exit(_run_rank() if "rank" in sys.argv else _run_ranks())
