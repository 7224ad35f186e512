#!/bin/sh
# From nothing to the lab model: tokenizer, training on two cores, export.
#   ./train.sh                 writes to build/lab_model_training/seed1 of the repository
#   SEED=2 OUT=/some/folder ./train.sh
# A run that was stopped continues where it was. PYTHON must have PyTorch (1.13 is enough).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
seed=${SEED:-1}
out=${OUT:-$here/../../../build/lab_model_training/seed$seed}
mkdir -p "$out"

[ -f "$out/merges.json" ] || "$python" "$here/bpe.py" --out "$out/merges.json"

export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) OMP_NUM_THREADS=1
set -- --merges "$out/merges.json" --out "$out/checkpoint.pt" --seed "$seed"
RANK=1 "$python" "$here/train.py" "$@" >>"$out/train.1.log" 2>&1 &
RANK=0 "$python" "$here/train.py" "$@" >>"$out/train.log" 2>&1
wait

"$python" "$here/export.py" --checkpoint "$out/checkpoint.pt" --merges "$out/merges.json" \
    --out "$out/model"
