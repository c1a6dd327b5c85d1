#!/usr/bin/env bash
# A run on nodes of GPUs under SLURM or Kubernetes: writes the batch script or the manifests and hands
# them in. On one node learner, sampler and workers live on it; --slices, --worker_nodes and
# --evaluator_node give samplers, workers and the evaluator nodes of their own, in a Ray cluster that is
# started with the run (on Kubernetes by the KubeRay operator). Its head runs beside the learner.
# The same command again resumes a run that has ended; on Kubernetes after --stop, which frees its names.
#
#   scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/runs/a
#   scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/runs/a \
#     --nodes=2 --set mesh.fsdp=4 --slices=2 --worker_nodes=4 --token_file=/shared/token
#   scripts/gpu_pod.sh --dry_run --scheduler=kubernetes --image=REGISTRY/jaxrl --claim=runs \
#     --config=configs/qwen3_30b_a3b_rl.py --workdir=/runs/a --slices=2 --secret=ray-token \
#     --set policy.init=/runs/qwen3 --set policy.tokenizer=/runs/qwen3
#
# --script     train_rl, train_sft (the warm-up) or evaluate (what the run has trained, scores in
#              evaluation.json); the last two use no --slices and no evaluator            [train_rl]
# --scheduler  slurm or kubernetes                                                  [slurm]
# --workdir    folder of the run, on a disk that outlives the nodes and that all of them share
# --name       of the job                                                           [jaxrl]
# --nodes      of the learner                                                       [1]
# --gpus       of a node                                                            [8]
# --cpus       of a node: as many workers play on each node of the cluster that has workers      [96]
# --slices     samplers with nodes of their own, on the mesh "sampler_mesh"         [0]
#              (with --set sampler.frozen_slices=N, the last N sample policies that are not
#              trained; a swarm with --nodes of 2 or more needs them)
# --slice_nodes   of each                                                           [1]
# --worker_nodes  without GPUs; with 0 the nodes of samplers have the workers       [0]
# --evaluator_node  one with GPUs for the evaluator, beside --slices or --worker_nodes; --set
#              evaluator.every=4 says how often it evaluates
# --port       of the head of the cluster                                           [6379]
# --token_file slurm: a file with the token of the cluster, on the shared disk and readable by you
#              alone: (umask 077; head -c 32 /dev/urandom | base64 > FILE)
# --secret     kubernetes: the secret that holds it, under "auth_token"
# --sbatch     slurm: options of every part of the job, as --sbatch="--partition=gpu --account=me"; may be
#              given again
# --worker_sbatch   slurm: options of the nodes for workers alone, after those, as --partition=cpu
# --hours      that SLURM grants; the job is queued again when they end             [24]
# --grace_s    seconds between SIGTERM and SIGKILL; see jaxrl_agents/learner/preemption.py    [300]
# --image      kubernetes: this checkout, installed with the extra "cuda"; for a cluster also
#              "ray[default]", whose agent KubeRay asks whether a pod lives
# --claim      kubernetes: the volume claim that --workdir lies on, mounted at its first folder
# --set a.b=c  overrides, as the script takes them; may be given again. On Kubernetes weights are
#              on the volume: --set policy.init=/runs/POLICY --set policy.tokenizer=/runs/POLICY
# --stop       ends the run of the other flags, which saves, and removes what was handed in; on SLURM
#              all of your jobs of that --name
# --dry_run    prints everything it would do, and does nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}
config='' workdir='' scheduler=slurm name=jaxrl gpus=8 cpus=96 hours=24 grace_s=300 image='' claim=''
nodes=1 slices=0 slice_nodes=1 worker_nodes=0 evaluator_node=0 port=6379 token_file='' secret=''
script=train_rl stop='' dry_run='' overrides=() sbatch=() worker_sbatch=()
while [ $# -gt 0 ]; do
  case $1 in
    --script=* | --config=* | --workdir=* | --scheduler=* | --name=* | --gpus=* | --cpus=* | \
      --hours=* | --grace_s=* | --image=* | --claim=* | --nodes=* | --slices=* | --slice_nodes=* | \
      --worker_nodes=* | --port=* | --token_file=* | --secret=*)
      flag=${1%%=*}
      printf -v "${flag#--}" %s "${1#*=}"
      ;;
    --set) overrides+=("--set=${2:?--set section.option=value}") && shift ;;
    --set=*) overrides+=("$1") ;;
    --sbatch=*) sbatch+=("${1#*=}") ;;
    --worker_sbatch=*) worker_sbatch+=("${1#*=}") ;;
    --evaluator_node) evaluator_node=1 ;;
    --stop) stop=yes ;;
    --dry_run) dry_run=yes ;;
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *) fail "no flag $1; --help lists them" ;;
  esac
  shift
done
[ -f "$config" ] || fail "--config=$config is no file"
[[ $workdir = /* ]] || fail "--workdir=$workdir is no absolute path; name a folder on a shared disk"
for number in gpus cpus hours grace_s nodes slice_nodes port; do
  [[ ${!number} =~ ^[1-9][0-9]*$ ]] || fail "--$number=${!number} is no positive number"
done
for number in slices worker_nodes; do
  [[ ${!number} =~ ^[0-9]+$ ]] || fail "--$number=${!number} is no number"
done
for option in "${sbatch[@]}" "${worker_sbatch[@]}"; do
  [[ $option = -* ]] || fail "--sbatch=$option is no option of sbatch, as --sbatch=--partition=gpu"
done
[ ${#worker_sbatch[@]} -eq 0 ] || [ "$worker_nodes" -gt 0 ] || fail "--worker_sbatch needs --worker_nodes"
case $script in
  train_rl) ;;
  train_sft | evaluate)
    [ "$slices" -eq 0 ] && [ $evaluator_node -eq 0 ] ||
      fail "--script=$script has no use for --slices and --evaluator_node; leave them out"
    ;;
  *) fail "--script=$script is none of train_rl, train_sft, evaluate" ;;
esac
fleet=$((slices + worker_nodes))
if [ $evaluator_node -eq 1 ]; then
  [ $fleet -gt 0 ] || fail "--evaluator_node needs --slices or --worker_nodes, whose nodes have the workers"
  [ "$slice_nodes" -eq 1 ] || fail "--evaluator_node needs --slice_nodes=1: the evaluator has one node"
  [[ " ${overrides[*]} " = *"=evaluator.every="* ]] || fail "--evaluator_node needs --set evaluator.every=4"
  overrides+=(--set=evaluator.on_node=True)
fi
if [ $fleet -gt 0 ]; then
  overrides=("--set=workers.processes=$cpus" "${overrides[@]}" --set=fleet.backend=ray
    "--set=fleet.address=HOST:$port" "--set=sampler.slices=$slices")
  [ $slices -eq 0 ] || overrides+=("--set=sampler.hosts=$slice_nodes")
fi
sampler_cpus=$((worker_nodes > 0 ? 0 : cpus)) # that it offers to workers
program=("scripts/$script.py" "--config=$config")
if [ "$script" = evaluate ]; then
  program+=("--checkpoint=$workdir" "--json=$workdir/evaluation.json")
else
  program+=("--workdir=$workdir")
fi
program+=("${overrides[@]}")
meet=$((port + 1)) # where the processes of the learner do

# ------------------------------------------------------------------------------------------- slurm

# srun of one role: number of its component of the job, its nodes, a program of .venv/bin and its words.
role() {
  local component=$1 count=$2 group='' command
  shift 2
  [ $fleet -eq 0 ] || group="--het-group=$component "
  command="exec .venv/bin/$(printf '%q ' "$@")"
  # The shell of each node fills in what its host is.
  command=${command//HOST:/'$HEAD:'}
  if [ "$component" -eq 0 ] && [ "$count" -gt 1 ]; then
    command+="--coordinator=\$(scontrol show hostnames \$SLURM_STEP_NODELIST | head -n 1):$meet"
    command+=' --num_processes=$SLURM_NTASKS --process_id=$SLURM_PROCID'
  fi
  # srun does not inherit the CPUs of a task from sbatch (since Slurm 22.05).
  echo "srun $group--cpus-per-task=$cpus --kill-on-bad-exit=1 bash -c ${command@Q} &"
}

# srun of nodes of the cluster: number of the component, its nodes, CPUs for workers, further words.
join() {
  local component=$1 count=$2 offered=$3
  shift 3
  role "$component" "$count" ray start --address="HOST:$port" --num-cpus="$offered" --block "$@"
}

# A component of the job: its nodes, further options.
component() {
  printf '#SBATCH %s\n' "--nodes=$1 --ntasks-per-node=1 --cpus-per-task=$cpus" "${sbatch[@]}" "${@:2}"
}

slurm() {
  local i
  cat <<SCRIPT
#!/usr/bin/env bash
#SBATCH --job-name=$name
#SBATCH --time=$hours:00:00
#SBATCH --signal=B:TERM@$grace_s
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$name-%j.log
$(component "$nodes" "--gpus-per-node=$gpus")
SCRIPT
  for ((i = 0; i < slices; i++)); do
    printf '#SBATCH hetjob\n%s\n' "$(component "$slice_nodes" "--gpus-per-node=$gpus")"
  done
  [ "$worker_nodes" -eq 0 ] ||
    printf '#SBATCH hetjob\n%s\n' "$(component "$worker_nodes" "${worker_sbatch[@]}")"
  [ $evaluator_node -eq 0 ] || printf '#SBATCH hetjob\n%s\n' "$(component 1 "--gpus-per-node=$gpus")"
  cat <<SCRIPT
set -u
cd $(printf %q "$PWD")
scripts/make_venv.sh .venv cuda$([ $fleet -eq 0 ] || echo ,ray) || exit
SCRIPT
  if [ $fleet -gt 0 ]; then
    cat <<SCRIPT
export HEAD=\$(hostname) RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 # for all roles
export RAY_AUTH_TOKEN_PATH=$(printf %q "$token_file")
.venv/bin/ray start --head --port=$port --num-cpus=0 --num-gpus=0 --include-dashboard=false --block &
SCRIPT
  fi
  for ((i = 1; i <= slices; i++)); do
    join "$i" "$slice_nodes" "$sampler_cpus" "--resources={\"slice$((i - 1))\": 1}"
  done
  [ "$worker_nodes" -eq 0 ] || join $((slices + 1)) "$worker_nodes" "$cpus" --num-gpus=0
  [ $evaluator_node -eq 0 ] || join $((slices + 1 + (worker_nodes > 0))) 1 0 '--resources={"evaluator": 1}'
  cat <<SCRIPT
# bash would hold a trap back until a command in the foreground ends: the run goes in the background.
$(role 0 "$nodes" python "${program[@]}")
run=\$!
trap 'kill -TERM \$run' TERM
trap 'stop=yes; kill -TERM \$run' USR1 # of --stop
while kill -0 \$run 2>/dev/null; do wait \$run; done # each signal ends one wait
wait \$run
status=\$?
kill \$(jobs -p) 2>/dev/null # the cluster
# 143: stopped by SIGTERM, all that is finished is saved; the next turn resumes it
[ \$status -ne 143 ] || [ -n "\${stop-}" ] || scontrol requeue \$SLURM_JOB_ID
exit \$status
SCRIPT
}

# -------------------------------------------------------------------------------------- kubernetes

job=$name-${script//_/-} # each script has its own: what a job runs cannot be changed

# A pod but for its restart policy, indented by $1: command or "", CPUs, GPUs.
pod() {
  local indent=$1 command=$2 cpu=$3 gpu=$4
  sed "s/^/$indent/" <<POD
containers:
- name: run
  image: $image${command:+
  command: $command}
  env:
  - {name: PYTHONUNBUFFERED, value: "1"}${secret:+
  - {name: RAY_AUTH_MODE, value: token\}
  - {name: RAY_AUTH_TOKEN, valueFrom: {secretKeyRef: {name: $secret, key: auth_token\}\}\}}
  resources:
    requests: {cpu: "$cpu"}$([ "$gpu" -eq 0 ] || printf '\n    limits: {nvidia.com/gpu: "%s"}' "$gpu")
  volumeMounts:
  - {name: runs, mountPath: /${folder%%/*}}
  - {name: shm, mountPath: /dev/shm}
volumes:
- {name: runs, persistentVolumeClaim: {claimName: $claim}}
- {name: shm, emptyDir: {medium: Memory}}
POD
}

# The learner: pods of a job know their numbers and names.
learner() {
  local words=("${program[@]/HOST:/$name-head-svc:}")
  if [ "$nodes" -gt 1 ]; then
    words+=("--coordinator=$job-0.$name:$meet" "--num_processes=$nodes"
      '--process_id=$(JOB_COMPLETION_INDEX)')
  fi
  words=(python "${words[@]}")
  # A process that uses a cluster must be on one of its nodes.
  [ $fleet -eq 0 ] || words=(bash -c "until ray start --address=$name-head-svc:$port --num-cpus=0 `
    `--num-gpus=0; do sleep 5; done; exec \"\$@\"" run "${words[@]}")
  words=("${words[@]//\"/\\\"}")
  cat <<MANIFEST
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $job
spec:
  completionMode: Indexed
  completions: $nodes
  parallelism: $nodes
  backoffLimit: 1000
  podFailurePolicy:
    rules:
    - action: FailJob  # bad input: trying again will not help
      onExitCodes: {operator: In, values: [2]}
    - action: Ignore  # the node was taken back: the next pod resumes the run
      onPodConditions: [{type: DisruptionTarget}]
  template:
    metadata:
      labels: {run: $name}
    spec:
      subdomain: $name
      restartPolicy: Never
      terminationGracePeriodSeconds: $grace_s
$(pod '      ' "[$(printf '"%s", ' "${words[@]}" | sed 's/, $//')]" "$cpus" "$gpus")
MANIFEST
}

# A group of nodes of the cluster: name, pods, CPUs for workers, GPUs, custom resources as JSON or "".
group() {
  local resources=''
  [ -z "$5" ] || resources=", resources: '\"${5//\"/\\\"}\"'"
  cat <<MANIFEST
  - groupName: $1
    replicas: $2
    minReplicas: $2
    maxReplicas: $2
    rayStartParams: {num-cpus: "$3"$resources}
    template:
      spec:
$(pod '        ' '' "$cpus" "$4")
MANIFEST
}

cluster() {
  local i
  cat <<MANIFEST
---
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: $name
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: "0", port: "$port"}
    template:
      spec:
$(pod '        ' '' 4 0)
  workerGroupSpecs:
MANIFEST
  for ((i = 0; i < slices; i++)); do
    group "slice$i" "$slice_nodes" "$sampler_cpus" "$gpus" "{\"slice$i\": 1}"
  done
  [ "$worker_nodes" -eq 0 ] || group workers "$worker_nodes" "$cpus" 0 ''
  [ $evaluator_node -eq 0 ] || group evaluator 1 0 "$gpus" '{"evaluator": 1}'
}

kubernetes() {
  local folder=${workdir#/}
  cat <<MANIFEST
apiVersion: v1
kind: Service
metadata:
  name: $name
spec:
  clusterIP: None  # names for the pods, no more
  publishNotReadyAddresses: true
  selector: {run: $name}
MANIFEST
  [ $fleet -eq 0 ] || cluster
  learner
}

run() {
  printf '+'
  printf ' %q' "$@"
  echo
  [ -n "$dry_run" ] || "$@"
}

# A job that waits in the queue is cancelled. One that plays is told to save, and not to queue again.
stop_slurm() {
  run scancel "--user=$(id -un)" "--name=$name" --state=PENDING
  run scancel "--user=$(id -un)" "--name=$name" --batch --signal=USR1
}

stop_kubernetes() {
  local deleted=(kubectl delete --ignore-not-found)
  # The learner first, its pods included: it saves while its samplers and workers are there.
  run "${deleted[@]}" --cascade=foreground "--timeout=$((grace_s + 60))s" job "$job"
  [ $fleet -eq 0 ] || run "${deleted[@]}" raycluster "$name"
  run "${deleted[@]}" service "$name"
}

# The image is this checkout, without the weights that git ignores.
check_weights() {
  local option folder override
  for option in init tokenizer; do
    folder=$(sed -n "s/.*\b$option=\"\([^\"]*\)\".*/\1/p" "$config" | head -n 1)
    for override in "${overrides[@]}"; do
      [[ $override != --set=policy.$option=* ]] || folder=${override#--set=policy.$option=}
    done
    [[ $folder != */* || $folder = /* || -n $(git ls-files -co --exclude-standard "$folder" 2>/dev/null) ]] ||
      fail "policy.$option=$folder is not in the image of this checkout; put the folder on the volume and `
        `name it: --set policy.$option=/FOLDER"
  done
}

case $scheduler in
  slurm)
    [ $fleet -eq 0 ] || [[ $token_file = /* ]] || fail "--slices and --worker_nodes need --token_file=/FILE"
    hand_in=(sbatch)
    ;;
  kubernetes)
    [ ${#sbatch[@]} -eq 0 ] || fail "--sbatch has no effect with --scheduler=kubernetes; leave it out"
    [ ${#worker_sbatch[@]} -eq 0 ] || fail "--worker_sbatch has no effect with --scheduler=kubernetes"
    [ -n "$image" ] && [ -n "$claim" ] || fail "kubernetes needs --image and --claim"
    [ $fleet -eq 0 ] || [ -n "$secret" ] || fail "--slices and --worker_nodes need --secret"
    check_weights
    hand_in=(kubectl apply -f -)
    ;;
  *) fail "--scheduler=$scheduler is neither slurm nor kubernetes" ;;
esac
if [ -n "$stop" ]; then
  "stop_$scheduler"
  exit
fi
echo "+ ${hand_in[*]} <<END"
"$scheduler"
echo END
[ -n "$dry_run" ] || "$scheduler" | "${hand_in[@]}"
