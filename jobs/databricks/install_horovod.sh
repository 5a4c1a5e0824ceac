#!/bin/bash
# Init script: Horovod 0.28.1 against the TensorFlow of the runtime, where the runtime has none (after 15.4 LTS ML).
# The wheel is built once and kept in the volume, named by the versions it was built against. On nodes with GPUs it averages
# with NCCL. It lacks the change that `python -m lakelens.horovod_build` makes, which keeps Gloo to one interface: no library of
# the cluster is installed yet. lakelens checks the addresses of such a Horovod when a rank starts.
set -euo pipefail
kept="${LAKELENS_WHEELS:-/Volumes/main/lakelens/files/wheels}"
python=/databricks/python/bin/python
if "$python" -c 'import horovod.tensorflow' 2>/dev/null; then exit 0; fi
device=cpu
if command -v nvidia-smi >/dev/null; then
    device=nccl
    export HOROVOD_GPU_OPERATIONS=NCCL
fi
built=$("$python" -c 'import sys, tensorflow as tf; print(f"tf{tf.__version__}-py{sys.version_info[0]}{sys.version_info[1]}")')-$device
if ! ls "$kept/$built"/horovod-*.whl >/dev/null 2>&1; then
    build=$(mktemp -d)
    "$python" -m pip install --quiet 'cmake<4' 'setuptools<70' wheel
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
        "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$build" horovod==0.28.1
    mkdir -p "$kept/$built"
    # Each node runs this: one that copies at the same time puts the same file there.
    cp "$build"/horovod-*.whl "$kept/$built/"
fi
"$python" -m pip install --quiet --no-deps "$kept/$built"/horovod-*.whl
