#!/usr/bin/env bash
# A run on TPU slices: asks for them, copies this checkout there, installs, starts the run as a
# service of each host, and follows the log. The same command again resumes a run that was stopped.
# On one slice learner, sampler and workers live on the same hosts; --slices, --worker_vms and
# --evaluator_topology give samplers, workers and the evaluator machines of their own, the nodes of a Ray
# cluster whose head is on the learner's first host.
#
#   scripts/tpu_pod.sh --dry_run --config=configs/gpt_oss_20b_rl.py --topology=v6e:8x8 --workdir=/mnt/runs/a
#   scripts/tpu_pod.sh --dry_run --config=configs/kimi_k2_rl.py --topology=v5p:4x16x32 --workdir=/mnt/runs/a \
#     --slices=4 --slice_topology=v5p:4x4x8 --set sampler_mesh.expert=128 --worker_vms=8 --token_file=token
#
# --topology   of the learner, as v5e:2x4, v6e:8x8, v5p:2x2x1. scripts/plan_pod.py says what fits
# --slices     samplers with slices of their own, on the mesh "sampler_mesh"        [0]
# --slice_topology   of each                                                        [--topology]
# --worker_vms       machines for workers alone; with 0 the hosts of samplers have the workers    [0]
# --worker_type      of these machines                                              [n2-standard-64]
# --workers    on each of these machines or hosts                                   [64]
# --evaluator_topology   of a slice of one host for the evaluator, beside --slices or --worker_vms; --set
#              evaluator.every=4 says how often it evaluates
# --port       of the head of the cluster                                           [6379]
# --token_file a file with the token of the cluster: (umask 077; head -c 32 /dev/urandom | base64 > FILE)
# --workdir    folder of the run, on a disk that outlives the machines and that all share (a bucket)
# --name       of the slices                                                        [jaxrl]
# --zone --project   as gcloud takes them                                           [its own defaults]
# --grace_s    seconds between SIGTERM and SIGKILL; see jaxrl_agents/learner/preemption.py    [300]
# --spot       machines that may be taken back
# --set a.b=c  overrides, as scripts/train_rl.py takes them; may be given again
# --dry_run    prints everything it would do, and does nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}
config='' topology='' workdir='' name=jaxrl grace_s=300 dry_run='' where=() spot=() overrides=()
slices=0 slice_topology='' worker_vms=0 worker_type=n2-standard-64 workers=64 port=6379 token_file=''
evaluator_topology=''
while [ $# -gt 0 ]; do
  case $1 in
    --config=* | --topology=* | --workdir=* | --name=* | --grace_s=* | --slices=* | \
      --slice_topology=* | --worker_vms=* | --worker_type=* | --workers=* | --port=* | \
      --token_file=* | --evaluator_topology=*)
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
for number in grace_s slices worker_vms workers port; do
  [[ ${!number} =~ ^[0-9]+$ ]] || fail "--$number=${!number} is no number"
done
slice_topology=${slice_topology:-$topology}

# Sets kind, runtime, count (as the cloud counts) and hosts of a topology.
describe() {
  local sides=${1#*:} chips a_host=4
  case $1 in
    v5e:[1-9]*x[1-9]*) kind=v5litepod runtime=v2-alpha-tpuv5-lite ;;
    v6e:[1-9]*x[1-9]*) kind=v6e runtime=v2-alpha-tpuv6e ;;
    v5p:[1-9]*x[1-9]*x[1-9]*) kind=v5p runtime=v2-alpha-tpuv5 ;;
    *) fail "$2=$1 is no topology: v5e or v6e of AxB, or v5p of AxBxC" ;;
  esac
  [[ $sides =~ ^[0-9]+(x[0-9]+)+$ ]] || fail "$2=$1 is no topology: v5e:2x4, v6e:8x8, v5p:2x2x1"
  chips=$((${sides//x/*}))
  [ "$kind" = v5p ] || [ $chips -gt 8 ] || a_host=$chips # up to eight chips on one host
  hosts=$(((chips + a_host - 1) / a_host)) count=$chips
  [ "$kind" != v5p ] || count=$((2 * chips)) # counted in cores
}
fleet=$((slices + worker_vms))
if [ -n "$evaluator_topology" ]; then
  needs_one_host() {
    describe "$2" "$1"
    [ $hosts -eq 1 ] || fail "$1=$2 has $hosts hosts; the evaluator and samplers beside it have one each"
  }
  needs_one_host --evaluator_topology "$evaluator_topology"
  [ "$slices" -eq 0 ] || needs_one_host --slice_topology "$slice_topology"
  [ $fleet -gt 0 ] || fail "--evaluator_topology needs --slices or --worker_vms, whose hosts have the workers"
  [[ " ${overrides[*]} " = *"=evaluator.every="* ]] || fail "--evaluator_topology needs --set evaluator.every=4"
  overrides+=(--set=evaluator.on_node=True)
fi
describe "$topology" --topology
describe "$slice_topology" --slice_topology
if [ $fleet -gt 0 ]; then
  [ -f "$token_file" ] || fail "--slices and --worker_vms need --token_file"
  overrides=("--set=workers.processes=$workers" "${overrides[@]}" --set=fleet.backend=ray
    "--set=fleet.address=HEAD:$port" "--set=sampler.slices=$slices")
  [ $slices -eq 0 ] || overrides+=("--set=sampler.hosts=$hosts") # of --slice_topology
fi
sampler_cpus=$((worker_vms > 0 ? 0 : workers)) # that each host of a sampler offers to workers
extra=$([ $fleet -eq 0 ] || echo ,ray)

run() {
  printf '+'
  printf ' %q' "$@"
  echo
  [ -n "$dry_run" ] || "$@"
}

# The machines of a role: the gcloud words for them, then what to do on each.
tpu=(compute tpus tpu-vm)
on_tpu() { run gcloud "${tpu[@]}" ssh "$1" "${where[@]}" --worker=all --command="$2"; }
on_vm() { run gcloud compute ssh "$1" "${where[@]}" --command="$2"; }

# Address of a slice's first host.
first_host() {
  if [ -n "$dry_run" ]; then
    echo "FIRST_HOST_OF_$1"
  else
    gcloud "${tpu[@]}" describe "$1" "${where[@]}" --format='value(networkEndpoints[0].ipAddress)'
  fi
}

ask_for_slice() { # name, topology
  describe "$2" topology
  run gcloud compute tpus queued-resources create "$1" --node-id="$1" "${where[@]}" \
    --accelerator-type="$kind-$count" --runtime-version="$runtime" "${spot[@]}"
}

fill_slice() { # name
  until [ -n "$dry_run" ] || gcloud compute tpus queued-resources describe "$1" "${where[@]}" \
    --format='value(state.state)' | grep -q ACTIVE; do sleep 30; done
  run gcloud "${tpu[@]}" scp --recurse . "$1:jaxrl_agents" "${where[@]}" --worker=all
  [ $fleet -eq 0 ] ||
    run gcloud "${tpu[@]}" scp "$token_file" "$1:.ray_token" "${where[@]}" --worker=all
  on_tpu "$1" "cd jaxrl_agents && scripts/make_venv.sh .venv tpu$extra && loginctl enable-linger"
}

# A service of a machine: its name, a program of .venv/bin and its words.
service() {
  local unit=$1 token=''
  shift
  [ $fleet -eq 0 ] ||
    token=' -p Environment=RAY_AUTH_MODE=token -p Environment=RAY_AUTH_TOKEN_PATH=%h/.ray_token'
  echo "systemd-run --user --unit=$unit --collect --working-directory=\$HOME/jaxrl_agents" \
    "-p TimeoutStopSec=$grace_s -p Restart=on-failure -p RestartPreventExitStatus=2$token" \
    ".venv/bin/$(printf '%q ' "$@")"
}

ask_for_slice "$name" "$topology"
for ((i = 0; i < slices; i++)); do ask_for_slice "$name-sampler$i" "$slice_topology"; done
[ -z "$evaluator_topology" ] || ask_for_slice "$name-evaluator" "$evaluator_topology"
for ((i = 0; i < worker_vms; i++)); do
  run gcloud compute instances create "$name-worker$i" "${where[@]}" --machine-type="$worker_type" \
    --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud \
    ${spot[0]:+--provisioning-model=SPOT}
done
fill_slice "$name"
head=$([ $fleet -eq 0 ] || first_host "$name")
if [ $fleet -gt 0 ]; then
  run gcloud "${tpu[@]}" ssh "$name" "${where[@]}" --worker=0 \
    --command="$(service "$name-ray" ray start --head --port="$port" --num-cpus=0 --block \
      --include-dashboard=false)"
fi
describe "$topology" topology
train=(scripts/train_rl.py "--config=$config" "--workdir=$workdir" "${overrides[@]/HEAD:/$head:}")
# More hosts are as many processes; their numbers jax asks the cloud for.
[ $hosts -eq 1 ] || train+=("--coordinator=$(first_host "$name"):$((port + 1))")
on_tpu "$name" "$(service "$name" python "${train[@]}")"
join=(ray start "--address=$head:$port" --block)
for ((i = 0; i < slices; i++)); do
  fill_slice "$name-sampler$i"
  on_tpu "$name-sampler$i" \
    "$(service "$name" "${join[@]}" "--num-cpus=$sampler_cpus" "--resources={\"slice$i\": 1}")"
done
if [ -n "$evaluator_topology" ]; then
  fill_slice "$name-evaluator"
  on_tpu "$name-evaluator" \
    "$(service "$name" "${join[@]}" --num-cpus=0 '--resources={"evaluator": 1}')"
fi
for ((i = 0; i < worker_vms; i++)); do
  run gcloud compute scp --recurse . "$name-worker$i:jaxrl_agents" "${where[@]}"
  run gcloud compute scp "$token_file" "$name-worker$i:.ray_token" "${where[@]}"
  on_vm "$name-worker$i" 'sudo apt-get install --yes python3-venv && cd jaxrl_agents && '`
    `'scripts/make_venv.sh .venv ray && loginctl enable-linger'
  on_vm "$name-worker$i" "$(service "$name" "${join[@]}" "--num-cpus=$workers")"
done
on_tpu "$name" "journalctl --user --follow --unit=$name"
