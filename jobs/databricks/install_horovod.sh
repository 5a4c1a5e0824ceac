#!/bin/bash
# Init script: Horovod for the TensorFlow of the runtime, where the runtime has none (after 15.4 LTS ML).
# Nodes that find no wheel in the volume compile one (3 to 8 minutes) and keep it there; later ones install it in seconds.
# lakelens runs from its wheel in the bundle's artifacts: no library of the cluster is installed yet.
set -euo pipefail
python=/databricks/python/bin/python
if "$python" -c 'import horovod.tensorflow' 2>/dev/null; then exit 0; fi
kept="${LAKELENS_WHEELS:-/Volumes/main/lakelens/files/wheels}"
lakelens=$(ls -t "$LAKELENS_ARTIFACTS"/lakelens-*.whl | head -n 1)
gpu=
if command -v nvidia-smi >/dev/null; then gpu=--gpu; fi
PYTHONPATH="$lakelens" "$python" -m lakelens.horovod_build --wheel-dir "$kept" $gpu
