#!/usr/bin/env bash
# One node of a job; the same command on each:  HEAD=node0 ./torchrun.sh train
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${GRACE:-110}" # seconds for a checkpoint after SIGTERM; else 30
exec torchrun \
  --nnodes="${NODES:-4}" \
  --nproc-per-node="${RANKS_PER_NODE:-8}" \
  --rdzv-backend=c10d \
  --rdzv-id="${JOB:-recd}" \
  --rdzv-endpoint="${HEAD:?the name of the first node}:${PORT:-29400}" \
  -m recd_plugins "$@"
