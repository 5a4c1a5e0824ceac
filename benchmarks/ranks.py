"""What ranks run in the benchmarks of launching and faults; each environment imports its own inside."""

from __future__ import annotations

from typing import Any

_PAUSE_S = 0.05


class Collective:
    """One launcher's way to sum a number over the ranks."""

    def __init__(self, library: str) -> None:
        self.library = library
        if library == "TorchDistributor":
            import torch
            import torch.distributed

            self.module: Any = torch
        elif library == "lakelens":
            import tensorflow  # noqa: F401 - the user's function would import it as well

            import lakelens.training.distributed

            self.module = lakelens.training.distributed
        else:
            import horovod.tensorflow

            self.module = horovod.tensorflow

    def join(self) -> tuple[int, int]:
        """Joins the world; gives rank and size."""
        if self.library == "TorchDistributor":
            self.module.distributed.init_process_group("gloo")
            return self.module.distributed.get_rank(), self.module.distributed.get_world_size()
        self.module.init()
        return self.module.rank(), self.module.size()

    def sum(self, value: float) -> float:
        """Sums a number over the ranks."""
        if self.library == "TorchDistributor":
            tensor = self.module.tensor([value], dtype=self.module.float32)
            self.module.distributed.all_reduce(tensor)
            return float(tensor[0])
        import numpy as np
        import tensorflow as tf

        tensor = tf.constant(np.array([value], np.float32))
        return float(self.module.allreduce(tensor, op=self.module.Sum)[0])


def first_allreduce(library: str) -> dict[str, float]:
    """Sums a one over the ranks; gives the time of the machine's clock when it has the sum."""
    import time

    collective = Collective(library)
    _, size = collective.join()
    total = collective.sum(1.0)
    if total != size:
        raise ValueError(f"the sum of ones over {size} ranks is {total}")
    return {"reduced": time.time()}


def meet_fault(library: str, fault: str, folder: str, seconds: float) -> int:
    """Sums ones over the ranks again and again, and does what `fault` asks of it once `go` lies in the folder.

    Each rank writes its process id to `rank-<n>.pid` after it has joined. Rank 1 is the rank that fails; when it
    does, it writes the time to `fault-at`. The file `go` holds the number of bytes to allocate for the out-of-memory
    fault; if all are allocated, the rank sends itself the signal that the kernel would have sent.
    """
    import os
    import signal
    import time
    from pathlib import Path

    place = Path(folder)
    (place / f"process-{os.getpid()}").touch()
    collective = Collective(library)
    rank, size = collective.join()
    collective.sum(1.0)
    (place / f"rank-{rank}.writing").write_text(str(os.getpid()), encoding="utf-8")
    (place / f"rank-{rank}.writing").rename(place / f"rank-{rank}.pid")
    # Counted, not timed: each rank has to take part in the same number of sums.
    for _ in range(round(seconds / _PAUSE_S)):
        if rank == 1 and (place / "go").exists() and fault in ("exception", "early return", "out of memory"):
            (place / "fault-at").write_text(repr(time.time()), encoding="utf-8")
            if fault == "early return":
                return size
            if fault == "out of memory":
                limit = int((place / "go").read_text(encoding="utf-8"))
                # The kernel has several to choose from.
                Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
                held: list[bytes] = []
                while len(held) << 24 < limit:
                    held.append(b"x" * (1 << 24))
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("the fault that was asked for")
        collective.sum(1.0)
        time.sleep(_PAUSE_S)
    return size
