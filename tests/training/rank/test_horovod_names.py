"""A rank whose function imports Horovod's Keras modules gets those that work with Keras 3."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.unit
@pytest.mark.parametrize("old", ["horovod.keras", "horovod.tensorflow.keras"])
def test_the_old_names_are_the_same_modules(old: str) -> None:
    code = f"""
import sys, types
for name in ("horovod", "horovod.tensorflow"):  # their import takes TensorFlow's seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
from lakelens.training.rank import horovod_names
horovod_names.install()
import {old} as hvd
import lakelens.hvd
assert hvd is lakelens.hvd, hvd
assert hvd.__spec__.name == "lakelens.training.distributed", hvd.__spec__
from {old} import size
assert size() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
