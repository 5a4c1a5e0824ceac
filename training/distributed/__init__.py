"""Horovod's Keras names, working on Keras 3: `import lakelens.hvd as hvd`.

With one process nothing here imports Horovod, and every collective returns its input. Names of Horovod that lakelens
lacks raise an error that names the replacement.

Examples:
    >>> import lakelens.hvd as hvd
    >>> hvd.init()
    >>> hvd.rank(), hvd.size()
    (0, 1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...errors import NotSupportedError
from ...extras import require
from ..rank.process_context import log_to_driver
from .collectives import allgather, alltoall, barrier, broadcast, broadcast_variables, grouped_allgather
from .horovod_options import global_process_set
from .membership import (
    ONE_WORLD,
    attempt,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    joined,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from .objects import allgather_object, broadcast_object
from .reduce_ops import Average, Compression, Max, Min, Product, ReduceOp, Sum
from .reductions import allreduce, grouped_allreduce, reducescatter

if TYPE_CHECKING:
    from ..checkpoints.model_loading import load_model
    from . import callbacks
    from .gradient_averaging import DistributedGradientTape
    from .optimizer import DistributedOptimizer
    from .sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "attempt",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "log_to_driver",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]

# Parts that import Keras or TensorFlow, by the module that holds them.
_HEAVY = {
    "DistributedGradientTape": ".gradient_averaging",
    "DistributedOptimizer": ".optimizer",
    "SyncBatchNormalization": ".sync_batch_norm",
    "load_model": "..checkpoints.model_loading",
}
# Questions about Horovod's build, with the answer for one process.
_ABOUT_HOROVOD = {
    "ccl_built": False,
    "cuda_built": False,
    "ddl_built": False,
    "gloo_built": False,
    "gloo_enabled": False,
    "is_homogeneous": True,
    "mpi_built": False,
    "mpi_enabled": False,
    "mpi_threads_supported": False,
    "nccl_built": 0,
    "rocm_built": False,
}
_INSTEAD = {
    "Adasum": "use op=hvd.Average or hvd.Sum",
    "PartialDistributedGradientTape": "every variable is shared by all ranks; use hvd.DistributedGradientTape",
    "PartialDistributedOptimizer": "every variable is shared by all ranks; use hvd.DistributedOptimizer",
    "ProcessSet": ONE_WORLD,
    "add_process_set": ONE_WORLD,
    "broadcast_": "use hvd.broadcast_variables(variables, root_rank)",
    "broadcast_global_variables": "use hvd.broadcast_variables(model.variables, root_rank)",
    "broadcast_object_fn": "use hvd.broadcast_object(value, root_rank)",
    "elastic": "a job has a fixed number of ranks; HorovodRunner(max_restarts=...) starts it again, and hvd.attempt() "
    "returns the number of this start",
    "grouped_reducescatter": "call hvd.reducescatter for each tensor",
    "join": "all ranks take the same number of steps; feed rows of zero weight to those that run out, as "
    "lakelens.DeltaFeed does",
    "local_rank_op": "use hvd.local_rank()",
    "local_size_op": "use hvd.local_size()",
    "process_set_included_op": ONE_WORLD,
    "rank_op": "use hvd.rank()",
    "remove_process_set": ONE_WORLD,
    "size_op": "use hvd.size()",
    "start_timeline": "pass env={'HOROVOD_TIMELINE': '/path/timeline.json'} to HorovodRunner",
    "stop_timeline": "pass env={'HOROVOD_TIMELINE': '/path/timeline.json'} to HorovodRunner",
}


def __getattr__(name: str) -> Any:
    if name == "callbacks" or name in _HEAVY:
        require(f"{__name__}.{name}", "tensorflow")
    if name == "callbacks":
        return importlib.import_module(".callbacks", __package__)
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name], __package__), name)
    if name in _ABOUT_HOROVOD:
        return lambda: _ABOUT_HOROVOD[name] if size() == 1 else getattr(joined(), name)()
    if name in _INSTEAD:
        raise NotSupportedError(f"Horovod's {name} is not supported: {_INSTEAD[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
