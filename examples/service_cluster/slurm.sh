#!/usr/bin/env bash
# A coordinator and workers of the reader service on nodes without GPUs: sbatch slurm.sh
# TLS: FOLDER has token, cert.pem and key.pem, whose certificate names all nodes (say *.cluster.local).
#SBATCH --job-name=recd-readers
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=4G
#SBATCH --time=24:00:00
set -euo pipefail

FOLDER=${RECD_FOLDER:-$PWD}
PORT=${RECD_PORT:-8815}
SECURITY=(--token-file "$FOLDER/token" --certificate "$FOLDER/cert.pem" --key "$FOLDER/key.pem")

# The first node's full name: ranks name it as `reader: {use: service, coordinator: HOST:PORT}`.
COORDINATOR=$(srun --nodes=1 --ntasks=1 hostname -f)
echo "coordinator: $COORDINATOR:$PORT"

# It is started again where it ends: it writes nothing down.
srun --nodes=1 --ntasks=1 --overlap --nodelist="$SLURMD_NODENAME" bash -c '
  while ! recd serve coordinator --host "$0" --port "$@"; do sleep 1; done
' "$COORDINATOR" "$PORT" "${SECURITY[@]}" &

# Each task is a worker, and joins from a port that is free; one that ends is started again.
srun --overlap bash -c '
  while ! recd serve worker --registry "$0/registry.yaml" --join "$1" --host "$(hostname -f)" "${@:2}"; do
    sleep 1
  done
' "$FOLDER" "$COORDINATOR:$PORT" "${SECURITY[@]}"
