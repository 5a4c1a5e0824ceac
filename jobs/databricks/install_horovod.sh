#!/bin/bash
# Init script: Horovod for the TensorFlow of the runtime, where the runtime has none (after 15.4 LTS ML).
# Nodes that find no wheel in the volume compile one (3 to 8 minutes) and keep it there; later ones install it in seconds.
# lakelens runs from its wheel, of the bundle's artifacts or where the variable `wheel` names one in a volume: no library of
# the cluster is installed yet.
set -euo pipefail
python=/databricks/python/bin/python
if "$python" -c 'import horovod.tensorflow' 2>/dev/null; then exit 0; fi
kept="${LAKELENS_WHEELS:-/Volumes/main/lakelens/files/wheels}"
case "${LAKELENS_WHEEL:-}" in
/*) lakelens=$LAKELENS_WHEEL ;;
*) lakelens=$(ls -t "$LAKELENS_ARTIFACTS"/lakelens-*.whl | head -n 1) || true ;;
esac
if [ ! -f "$lakelens" ]; then
    echo "error: no lakelens wheel at ${lakelens:-$LAKELENS_ARTIFACTS}; deploy the bundle with --var wheel=PATH" >&2
    exit 1
fi
gpu=
if command -v nvidia-smi >/dev/null; then gpu=--gpu; fi
# A volume may have neither locks nor appending: the build works on the node's own disk. A wheel that another node is just
# writing is not whole: it is noticed, and compiled again.
export XDG_CACHE_HOME="${LAKELENS_BUILD:-/tmp/lakelens-build}"
wheels="$XDG_CACHE_HOME/lakelens/wheels"
mkdir -p "$kept" "$wheels"
cp -r "$kept/." "$wheels/" || true
PYTHONPATH="$lakelens" "$python" -m lakelens.horovod_build $gpu
cp -r "$wheels/." "$kept/" || true
