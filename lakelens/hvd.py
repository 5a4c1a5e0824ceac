"""Horovod's Keras names, working on Keras 3: `import lakelens.hvd as hvd`.

This is the package `lakelens.training.distributed` under a shorter name.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from .module_aliases import ModuleAliases

if TYPE_CHECKING:
    from .training.distributed import *  # noqa: F403
    from .training.distributed import callbacks as callbacks

_TARGET = "lakelens.training.distributed"


ModuleAliases(_TARGET, __name__).install()
sys.modules[__name__] = importlib.import_module(_TARGET)
