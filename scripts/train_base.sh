#!/usr/bin/env bash
# Trains the base policy of configs/search_base_cpu.py from scratch, first on drills alone (W/drills),
# then on episodes and drills:
#   scripts/train_base.sh WORKDIR                 policy and curve.csv in WORKDIR/base
#   scripts/train_base.sh WORKDIR --export        also in jaxrl_agents/assets/search_base
#   scripts/train_base.sh WORKDIR --set sft.steps=99   further flags of scripts/train_sft.py
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
    places+=(jaxrl_agents/assets/search_base)
    shift
    ;;
esac
python=${PYTHON:-python}
config=configs/search_base_cpu.py
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
if [ ! -d "$workdir/drills/warm_start" ]; then
  "$python" scripts/train_sft.py --config="$config" --workdir="$workdir/drills" \
    --set "sft.rates=(0,0,0,1)" --set sft.steps=600 --set sft.lr=3e-3 \
    --set sft.demonstration_tasks=20 --set sft.practice_tasks=10 --set sft.mtp_steps=2 "$@"
fi
"$python" scripts/train_sft.py --config="$config" --workdir="$workdir" \
  --set "policy.init=$workdir/drills/warm_start" "$@"
for place in "${places[@]}"; do
  "$python" scripts/export_policy.py --config="$config" --workdir="$workdir/drills" \
    --workdir="$workdir" --out="$place" --dtype=bfloat16
done
