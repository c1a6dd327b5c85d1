#!/usr/bin/env bash
# Trains the base policy of configs/base_cpu.py from scratch:
#   scripts/train_base.sh WORKDIR                 policy and curve.csv in WORKDIR/base
#   scripts/train_base.sh WORKDIR --export        also in jaxrl_agents/assets/base; config.BASE_MODEL
#                                                 must then have the sizes of configs/base_cpu.py
#   scripts/train_base.sh WORKDIR --set sft.steps=30   further flags go to scripts/train_sft.py
# The same command goes on where it was stopped. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then
  echo "usage: scripts/train_base.sh WORKDIR [--export] [flags of scripts/train_sft.py]" >&2
  exit 2
fi
workdir=$1
shift
places=("$workdir/base")
case "${1:-}" in
  --export)
    places+=(jaxrl_agents/assets/base)
    shift
    ;;
esac
python=${PYTHON:-python}
config=configs/base_cpu.py
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
"$python" scripts/train_sft.py --config="$config" --workdir="$workdir" "$@"
for place in "${places[@]}"; do
  "$python" scripts/export_policy.py --config="$config" --workdir="$workdir" --out="$place"
done
