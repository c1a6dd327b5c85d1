#!/usr/bin/env bash
# Trains a base policy. That of the search agent is trained from scratch, first on drills alone;
# those of the swarm and of the coding agent go on from the shipped base of the search agent, that
# of the coding agent first on code alone. The first stage of both lies in WORKDIR/first.
#   scripts/train_base.sh search WORKDIR             policy and curve.csv in WORKDIR/base
#   scripts/train_base.sh search WORKDIR --export    also in jaxrl_agents/assets/search_base
#   scripts/train_base.sh coding WORKDIR             for configs/coding_counted_cpu.py
#   scripts/train_base.sh swarm WORKDIR --set sft.steps=99    further flags of scripts/train_sft.py
# The same command goes on where it was stopped. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() {
  echo "usage: scripts/train_base.sh search|swarm|coding WORKDIR [--export] [flags of scripts/train_sft.py]" >&2
  exit 2
}
agent=${1:-} workdir=${2:-}
case "$agent" in search | swarm | coding) ;; *) usage ;; esac
case "$workdir" in "" | -*) usage ;; esac
shift 2
places=("$workdir/base")
if [ "${1:-}" = --export ]; then
  places+=("jaxrl_agents/assets/${agent}_base")
  shift
fi
python=${PYTHON:-python}
config=configs/${agent}_base_cpu.py
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
stages=(--workdir="$workdir")
first=()
case "$agent" in
search)
  first=(--set "sft.rates=(0,0,0,1)" --set sft.steps=600 --set sft.lr=3e-3
    --set sft.demonstration_tasks=20 --set sft.practice_tasks=10 --set sft.mtp_steps=2)
  ;;
coding)
  first=(--set "sft.rates=(0,0,0,1)" --set coding.drill_texts=1.0 --set sft.steps=520 --set sft.lr=2e-3 --set sft.mtp_steps=2)
  ;;
esac
init=()
if [ ${#first[@]} -gt 0 ]; then
  stages=(--workdir="$workdir/first" "${stages[@]}")
  init=(--set "policy.init=$workdir/first/warm_start")
  if [ ! -d "$workdir/first/warm_start" ]; then
    "$python" scripts/train_sft.py --config="$config" --workdir="$workdir/first" "${first[@]}" "$@"
  fi
fi
"$python" scripts/train_sft.py --config="$config" --workdir="$workdir" "${init[@]}" "$@"
for place in "${places[@]}"; do
  "$python" scripts/export_policy.py --config="$config" "${stages[@]}" --out="$place" --dtype=bfloat16
done
