#!/usr/bin/env bash
# A run on a TPU slice: asks for the slice, copies this checkout there, installs, starts the run as a
# service of the machine, and follows its log. The same command again resumes a run that was stopped.
#
#   scripts/tpu_pod.sh --dry_run --config=configs/gpt_oss_20b_rl.py --topology=v6e:2x4 --workdir=/mnt/runs/a
#
# --topology   v5e:2x4, v6e:2x4 or smaller, v5p:2x2x1: one host, on which the learner, its sampler and
#              its workers live in one process. scripts/plan_pod.py says what fits
# --workdir    folder of the run on the machine; on a disk that outlives it (a mounted bucket)
# --name       of the slice                                                         [jaxrl]
# --zone --project   as gcloud takes them                                           [its own defaults]
# --grace_s    seconds between SIGTERM and SIGKILL; see jaxrl_agents/learner/preemption.py    [300]
# --spot       a slice that may be taken back
# --set a.b=c  overrides, as scripts/train_rl.py takes them; may be given again
# --dry_run    prints everything it would do, and does nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}
config='' topology='' workdir='' name=jaxrl grace_s=300 dry_run='' where=() spot=() overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --config=* | --topology=* | --workdir=* | --name=* | --grace_s=*)
      flag=${1%%=*}
      printf -v "${flag#--}" %s "${1#*=}"
      ;;
    --zone=* | --project=*) where+=("$1") ;;
    --spot) spot=(--spot) ;;
    --set) overrides+=("--set=${2:?--set section.option=value}") && shift ;;
    --set=*) overrides+=("$1") ;;
    --dry_run) dry_run=yes ;;
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *) fail "no flag $1; --help lists them" ;;
  esac
  shift
done
[ -f "$config" ] || fail "--config=$config is no file"
[ -n "$workdir" ] || fail "--workdir is missing: a folder on a disk that outlives the machine"
[[ $grace_s =~ ^[0-9]+$ ]] || fail "--grace_s=$grace_s is no number of seconds"
case $topology in
  v5e:1x1 | v5e:2x2 | v5e:2x4) kind=v5litepod runtime=v2-alpha-tpuv5-lite ;;
  v6e:1x1 | v6e:2x2 | v6e:2x4) kind=v6e runtime=v2-alpha-tpuv6e ;;
  v5p:2x2x1) kind=v5p runtime=v2-alpha-tpuv5 ;;
  *) fail "--topology=$topology is not one host: v5e or v6e of 1x1, 2x2 or 2x4, or v5p:2x2x1" ;;
esac
sides=${topology#*:}
count=$((${sides//x/*}))
[ "$kind" = v5p ] && count=$((2 * count)) # counted in cores

run() {
  printf '+'
  printf ' %q' "$@"
  echo
  [ -n "$dry_run" ] || "$@"
}
remote() { run gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command="$1"; }

train=(scripts/train_rl.py "--config=$config" "--workdir=$workdir" "${overrides[@]}")
service="systemd-run --user --unit=$name --collect --working-directory=\$HOME/jaxrl_agents
  -p TimeoutStopSec=$grace_s -p Restart=on-failure -p RestartPreventExitStatus=2
  .venv/bin/python$(printf ' %q' "${train[@]}")"

run gcloud compute tpus queued-resources create "$name" --node-id="$name" "${where[@]}" \
  --accelerator-type="$kind-$count" --runtime-version="$runtime" "${spot[@]}"
until [ -n "$dry_run" ] || gcloud compute tpus queued-resources describe "$name" "${where[@]}" \
  --format='value(state.state)' | grep -q ACTIVE; do sleep 30; done
run gcloud compute tpus tpu-vm scp --recurse . "$name:jaxrl_agents" "${where[@]}" --worker=all
remote 'cd jaxrl_agents && scripts/make_venv.sh .venv tpu && loginctl enable-linger'
remote "${service//$'\n' /}"
remote "journalctl --user --follow --unit=$name"
