"""The ranks of a job as PyTorch's process group: `process_group.init()` in a training function of `torch.distributed`.

    rank_store (the launcher's store, as torch.distributed's) --> group

Start: `group.init`.
"""

from __future__ import annotations

from .group import init

__all__ = ["init"]
