#!/usr/bin/env bash
# A run on TPU slices: asks for them, copies this checkout there, installs, starts the run as a
# service of each host, and follows the log. The same command again resumes a run that was stopped, also
# after a reboot: it keeps the machines that are there, asks for those that were taken back, and starts
# all services anew. With --stop it ends the run, which saves, and deletes these machines.
# On one slice learner, sampler and workers live on the same hosts; --slices, --worker_vms and
# --evaluator_topology give samplers, workers and the evaluator machines of their own, the nodes of a Ray
# cluster whose head is on the learner's first host.
#
#   scripts/tpu_pod.sh --dry_run --config=configs/gpt_oss_20b_rl.py --topology=v6e:8x8 --workdir=/mnt/runs/a \
#     --set policy.init=/mnt/gpt_oss_20b --set policy.tokenizer=/mnt/gpt_oss_20b
#   scripts/tpu_pod.sh --dry_run --config=configs/kimi_k2_rl.py --topology=v5p:4x16x32 --workdir=/mnt/runs/a \
#     --slices=4 --slice_topology=v5p:4x4x8 --set sampler_mesh.expert=128 --worker_vms=8 --token_file=token \
#     --set policy.init=/mnt/kimi_k2 --set policy.tokenizer=/mnt/kimi_k2
#
# --script     train_rl, train_sft (the warm-up) or evaluate (what the run has trained, scores in
#              evaluation.json); the last two use no --slices and no evaluator            [train_rl]
# --topology   of the learner, as v5e:2x4, v6e:8x8, v5p:2x2x1. scripts/plan_pod.py says what fits
# --slices     samplers with slices of their own, on the mesh "sampler_mesh"        [0]
#              (with --set sampler.frozen_slices=N, the last N sample policies that are not
#              trained; a swarm whose learner has several hosts needs them)
# --slice_topology   of each                                                        [--topology]
# --worker_vms       machines for workers alone; with 0 the hosts of samplers have the workers    [0]
# --worker_type      of these machines                                              [n2-standard-64]
# --workers    on each of these machines or hosts                                   [64]
# --evaluator_topology   of a slice of one host for the evaluator, beside --slices or --worker_vms; --set
#              evaluator.every=4 says how often it evaluates
# --port       of the head of the cluster                                           [6379]
# --token_file a file with the token of the cluster: (umask 077; head -c 32 /dev/urandom | base64 > FILE)
# --workdir    folder of the run, on a disk that outlives the machines and that all mount under this path:
#              Filestore, Lustre or NFS; of a bucket see docs/scaling-out.md
# --name       of the slices                                                        [jaxrl]
# --zone --project   as gcloud takes them                                           [its own defaults]
# --grace_s    seconds between SIGTERM and SIGKILL; see jaxrl_agents/learner/preemption.py    [300]
# --spot       machines that may be taken back
# --set a.b=c  overrides, as the script takes them; may be given again. What git ignores is not
#              copied: --set policy.init=/mnt/POLICY --set policy.tokenizer=/mnt/POLICY name weights
# --stop       ends the run of the other flags and deletes its machines; --workdir keeps what it has
# --dry_run    prints everything it would do, where no machine is there yet, and does nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}
config='' topology='' workdir='' name=jaxrl grace_s=300 dry_run='' where=() spot=() overrides=()
slices=0 slice_topology='' worker_vms=0 worker_type=n2-standard-64 workers=64 port=6379 token_file=''
evaluator_topology='' stop='' script=train_rl
while [ $# -gt 0 ]; do
  case $1 in
    --script=* | --config=* | --topology=* | --workdir=* | --name=* | --grace_s=* | --slices=* | \
      --slice_topology=* | --worker_vms=* | --worker_type=* | --workers=* | --port=* | \
      --token_file=* | --evaluator_topology=*)
      flag=${1%%=*}
      printf -v "${flag#--}" %s "${1#*=}"
      ;;
    --zone=* | --project=*) where+=("$1") ;;
    --spot) spot=(--spot) ;;
    --set) overrides+=("--set=${2:?--set section.option=value}") && shift ;;
    --set=*) overrides+=("$1") ;;
    --stop) stop=yes ;;
    --dry_run) dry_run=yes ;;
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *) fail "no flag $1; --help lists them" ;;
  esac
  shift
done
[ -f "$config" ] || fail "--config=$config is no file"
if git rev-parse 2>/dev/null && [[ $config = /* || -z $(git ls-files -co --exclude-standard -- "$config") ]]; then
  fail "--config=$config is not among the files that the machines get; put it into this checkout"
fi
[ -n "$workdir" ] || fail "--workdir is missing: a folder on a disk that outlives the machine"
for number in grace_s slices worker_vms workers port; do
  [[ ${!number} =~ ^[0-9]+$ ]] || fail "--$number=${!number} is no number"
done
slice_topology=${slice_topology:-$topology}

# Weights that git ignores are not copied to the machines.
for option in init tokenizer; do
  folder=$(sed -n "s/.*\b$option=\"\([^\"]*\)\".*/\1/p" "$config" | head -n 1)
  for override in "${overrides[@]}"; do
    [[ $override != --set=policy.$option=* ]] || folder=${override#--set=policy.$option=}
  done
  [[ $folder != */* || $folder = [/~]* || -n $(git ls-files -co --exclude-standard "$folder" 2>/dev/null) ]] ||
    fail "policy.$option=$folder is not among the files that are copied; put the folder on the shared disk `
      `and name it: --set policy.$option=/FOLDER"
done

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
case $script in
  train_rl) ;;
  train_sft | evaluate)
    [ "$slices" -eq 0 ] && [ -z "$evaluator_topology" ] ||
      fail "--script=$script has no use for --slices and --evaluator_topology; leave them out"
    ;;
  *) fail "--script=$script is none of train_rl, train_sft, evaluate" ;;
esac
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
samplers=() evaluators=(${evaluator_topology:+"$name-evaluator"}) worker_names=()
for ((i = 0; i < slices; i++)); do samplers+=("$name-sampler$i"); done
for ((i = 0; i < worker_vms; i++)); do worker_names+=("$name-worker$i"); done
sampler_cpus=$((worker_vms > 0 ? 0 : workers)) # that each host of a sampler offers to workers
extra=$([ $fleet -eq 0 ] || echo ,ray)

run() {
  printf '+'
  printf ' %q' "$@"
  echo
  [ -n "$dry_run" ] || "$@"
}

# The machines of a role: the gcloud words for them, then what to do on each.
tpu=(compute tpus tpu-vm) queue=(compute tpus queued-resources) vm=(compute instances)
on_tpu() { run gcloud "${tpu[@]}" ssh "$1" "${where[@]}" --worker=all --command="$2"; }
on_vm() { run gcloud compute ssh "$1" "${where[@]}" --command="$2"; }

# What the cloud says about a machine; nothing where there is none.
described() { # gcloud words, format
  local errors
  [ -z "$dry_run" ] || return 0
  {
    errors=$(gcloud "${@:1:$#-1}" "${where[@]}" --format="value(${!#})" 2>&1 >&3) ||
      [[ ${errors,,} = *not[_\ ]found* ]] || fail "$errors"
  } 3>&1
}
state_of_slice() { described "${queue[@]}" describe "$1" state.state; }
state_of_vm() { described "${vm[@]}" describe "$1" status; }

# Address of a slice's first host.
first_host() {
  if [ -n "$dry_run" ]; then
    echo "FIRST_HOST_OF_$1"
  else
    gcloud "${tpu[@]}" describe "$1" "${where[@]}" --format='value(networkEndpoints[0].ipAddress)'
  fi
}

delete_slice() { run gcloud "${queue[@]}" delete "$1" "${where[@]}" --force --quiet; }

ask_for_slice() { # name, topology
  local state
  state=$(state_of_slice "$1")
  while [[ $state = SUSPENDING || $state = DELETING ]]; do
    sleep 30
    state=$(state_of_slice "$1")
  done
  case $state in
    '') ;;
    SUSPENDED | FAILED) delete_slice "$1" ;; # its name is taken, and nothing of it will come back
    *) return 0 ;;
  esac
  describe "$2" topology
  run gcloud "${queue[@]}" create "$1" --node-id="$1" "${where[@]}" \
    --accelerator-type="$kind-$count" --runtime-version="$runtime" "${spot[@]}"
}

# Capacity may take days to come: this waits for as long as the request stands.
wait_for_slice() {
  local state=''
  until [ -n "$dry_run" ] || [ "$state" = ACTIVE ]; do
    state=$(state_of_slice "$1")
    case $state in
      ACTIVE) ;;
      '' | FAILED | SUSPENDED) fail "the slice $1 is ${state:-gone}; the same command asks for it again" ;;
      *) sleep 30 ;;
    esac
  done
}

ask_for_vm() { # name
  local status
  status=$(state_of_vm "$1")
  case $status in
    '')
      run gcloud "${vm[@]}" create "$1" "${where[@]}" --machine-type="$worker_type" \
        --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud \
        ${spot[0]:+--provisioning-model=SPOT}
      ;;
    TERMINATED | STOPPED) run gcloud "${vm[@]}" start "$1" "${where[@]}" ;; # it was taken back
  esac
}

# Ends the services that a machine has kept since an earlier call: first the learner, which saves, then
# the head of the cluster.
halt="systemctl --user stop $name 2>/dev/null; systemctl --user stop $name-ray 2>/dev/null; true"

# The archive of this checkout that the machines get: what git knows or would add, without environments,
# runs and weights.
archive=CHECKOUT.tar.gz
pack() {
  if [ -z "$dry_run" ]; then
    archive=$(mktemp --suffix=.tar.gz)
    trap 'rm -f "$archive"' EXIT
    git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -T - -czf "$archive" ||
      fail "$PWD cannot be packed; the machines get the files of a git checkout"
    [ "$(stat -c %s "$archive")" -lt 200000000 ] ||
      fail "this checkout is over 200 MB packed; move weights and runs to policies/ or runs/"
  fi
}
# Files of an earlier copy must not stay in the package: processes compare its code.
unpack='mkdir -p jaxrl_agents && rm -rf jaxrl_agents/jaxrl_agents && '`
  `'tar -xzf checkout.tar.gz -C jaxrl_agents && cd jaxrl_agents'

fill_slice() { # name
  wait_for_slice "$1"
  on_tpu "$1" "$halt"
  run gcloud "${tpu[@]}" scp "$archive" "$1:checkout.tar.gz" "${where[@]}" --worker=all
  [ $fleet -eq 0 ] ||
    run gcloud "${tpu[@]}" scp "$token_file" "$1:.ray_token" "${where[@]}" --worker=all
  on_tpu "$1" "$unpack && scripts/make_venv.sh .venv tpu$extra && loginctl enable-linger"
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

if [ -n "$stop" ]; then
  left=()
  state=$(state_of_slice "$name")
  if [ -n "$dry_run" ] || [ "$state" = ACTIVE ]; then
    on_tpu "$name" "$halt" || echo "the service of $name did not answer; its last save counts"
  fi
  for each in "$name" "${samplers[@]}" "${evaluators[@]}"; do
    state=$(state_of_slice "$each")
    [ -z "$state$dry_run" ] || delete_slice "$each" || left+=("$each")
  done
  for each in "${worker_names[@]}"; do
    state=$(state_of_vm "$each")
    [ -z "$state$dry_run" ] || run gcloud "${vm[@]}" delete "$each" "${where[@]}" --quiet || left+=("$each")
  done
  [ ${#left[@]} -eq 0 ] || fail "these machines could not be deleted, and cost money: ${left[*]}"
  exit
fi
describe "$topology" topology
program=("scripts/$script.py" "--config=$config")
if [ "$script" = evaluate ]; then
  program+=("--checkpoint=$workdir" "--json=$workdir/evaluation.json")
else
  program+=("--workdir=$workdir")
fi
pack
ask_for_slice "$name" "$topology"
for each in "${samplers[@]}"; do ask_for_slice "$each" "$slice_topology"; done
for each in "${evaluators[@]}"; do ask_for_slice "$each" "$evaluator_topology"; done
for each in "${worker_names[@]}"; do ask_for_vm "$each"; done
fill_slice "$name"
head=$([ $fleet -eq 0 ] || first_host "$name")
if [ $fleet -gt 0 ]; then
  run gcloud "${tpu[@]}" ssh "$name" "${where[@]}" --worker=0 \
    --command="$(service "$name-ray" ray start --head --port="$port" --num-cpus=0 --block \
      --include-dashboard=false)"
fi
describe "$topology" topology
program+=("${overrides[@]/HEAD:/$head:}")
# More hosts are as many processes; their numbers jax asks the cloud for.
[ $hosts -eq 1 ] || program+=("--coordinator=$(first_host "$name"):$((port + 1))")
on_tpu "$name" "$(service "$name" python "${program[@]}")"
join=(ray start "--address=$head:$port" --block)
for ((i = 0; i < slices; i++)); do
  fill_slice "${samplers[i]}"
  on_tpu "${samplers[i]}" \
    "$(service "$name" "${join[@]}" "--num-cpus=$sampler_cpus" "--resources={\"slice$i\": 1}")"
done
for each in "${evaluators[@]}"; do
  fill_slice "$each"
  on_tpu "$each" "$(service "$name" "${join[@]}" --num-cpus=0 '--resources={"evaluator": 1}')"
done
for each in "${worker_names[@]}"; do
  on_vm "$each" "$halt"
  run gcloud compute scp "$archive" "$each:checkout.tar.gz" "${where[@]}"
  run gcloud compute scp "$token_file" "$each:.ray_token" "${where[@]}"
  on_vm "$each" "sudo apt-get install --yes python3-venv && $unpack && `
    `scripts/make_venv.sh .venv ray && loginctl enable-linger"
  on_vm "$each" "$(service "$name" "${join[@]}" "--num-cpus=$workers")"
done
on_tpu "$name" "journalctl --user --follow --unit=$name"
