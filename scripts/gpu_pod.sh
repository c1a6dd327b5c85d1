#!/usr/bin/env bash
# A run on nodes of GPUs under SLURM or Kubernetes: writes the batch script or the manifests and hands
# them in. On one node learner, sampler and workers live in one process; --slices and --worker_nodes
# give samplers and workers nodes of their own. All take the same config and start the same scripts.
#
#   scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/runs/a
#   scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/runs/a \
#     --nodes=2 --set mesh.fsdp=4 --slices=2 --worker_nodes=4 --key_file=/shared/key
#   scripts/gpu_pod.sh --dry_run --scheduler=kubernetes --image=REGISTRY/jaxrl --claim=runs \
#     --config=configs/qwen3_30b_a3b_rl.py --workdir=/runs/a --slices=2 --secret=jaxrl-key
#
# --scheduler  slurm or kubernetes                                                  [slurm]
# --workdir    folder of the run, on a disk that outlives the nodes and that all of them share
# --name       of the job                                                           [jaxrl]
# --nodes      of the learner                                                       [1]
# --gpus       of a node                                                            [8]
# --cpus       of a node: workers.processes of the config, and a few                [96]
# --slices     samplers with nodes of their own, on the mesh "sampler_mesh"         [0]
# --slice_nodes   of each                                                           [1]
# --worker_nodes  without GPUs, with as many workers each as --cpus                 [0]
# --port       of the learner, where the others join                                [7000]
# --key_file   slurm: a file with the key that they share, on the shared disk; see scripts/worker.py
# --secret     kubernetes: the secret that holds it, under "key"
# --hours      that SLURM grants; the job is queued again when they end             [24]
# --grace_s    seconds between SIGTERM and SIGKILL; see jaxrl_agents/learner/preemption.py    [300]
# --image      kubernetes: this checkout, installed with the extra "cuda"
# --claim      kubernetes: the volume claim that --workdir lies on, mounted at its first folder
# --set a.b=c  overrides, as scripts/train_rl.py takes them; may be given again
# --dry_run    prints everything it would do, and does nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}
config='' workdir='' scheduler=slurm name=jaxrl gpus=8 cpus=96 hours=24 grace_s=300 image='' claim=''
nodes=1 slices=0 slice_nodes=1 worker_nodes=0 port=7000 key_file='' secret='' dry_run='' overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --config=* | --workdir=* | --scheduler=* | --name=* | --gpus=* | --cpus=* | --hours=* | \
      --grace_s=* | --image=* | --claim=* | --nodes=* | --slices=* | --slice_nodes=* | \
      --worker_nodes=* | --port=* | --key_file=* | --secret=*)
      flag=${1%%=*}
      printf -v "${flag#--}" %s "${1#*=}"
      ;;
    --set) overrides+=("--set=${2:?--set section.option=value}") && shift ;;
    --set=*) overrides+=("$1") ;;
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
fleet=$((slices + worker_nodes))
if [ $fleet -gt 0 ]; then
  overrides+=("--set=workers.listen=0.0.0.0:$port" "--set=sampler.slices=$slices")
fi
same=("--config=$config" "--workdir=$workdir" "${overrides[@]}") # one config for all roles
meet=$((port + 1))                                               # where the processes of a role do

# ------------------------------------------------------------------------------------------- slurm

# srun of one role: number of its component of the job, its nodes, the command.
role() {
  local component=$1 count=$2 group='' command
  shift 2
  [ $fleet -eq 0 ] || group="--het-group=$component "
  command="exec .venv/bin/python$(printf ' %q' "$@")"
  # The shell of each node fills in what its host is.
  command=${command//HOST:/'$HEAD:'}
  if [ "$count" -gt 1 ]; then
    command+=" --coordinator=\$(scontrol show hostnames \$SLURM_STEP_NODELIST | head -n 1):$meet"
    command+=' --num_processes=$SLURM_NTASKS --process_id=$SLURM_PROCID'
  fi
  echo "srun $group--kill-on-bad-exit=1 bash -c ${command@Q} &"
}

component() {
  local count=$1 more=$2
  echo "#SBATCH --nodes=$count --ntasks-per-node=1 --cpus-per-task=$cpus$more"
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
$(component "$nodes" " --gpus-per-node=$gpus")
SCRIPT
  for ((i = 0; i < slices; i++)); do
    printf '#SBATCH hetjob\n%s\n' "$(component "$slice_nodes" " --gpus-per-node=$gpus")"
  done
  [ "$worker_nodes" -eq 0 ] || printf '#SBATCH hetjob\n%s\n' "$(component "$worker_nodes" '')"
  cat <<SCRIPT
set -u
cd $(printf %q "$PWD")
scripts/make_venv.sh .venv cuda || exit
SCRIPT
  [ $fleet -eq 0 ] ||
    echo "export HEAD=\$(hostname) JAXRL_KEY_FILE=$(printf %q "$key_file") # for all roles"
  for ((i = 1; i <= slices; i++)); do
    role "$i" "$slice_nodes" scripts/sampler.py "${same[@]}" "--connect=HOST:$port"
  done
  [ "$worker_nodes" -eq 0 ] ||
    role $((slices + 1)) 1 scripts/worker.py "--connect=HOST:$port" "--processes=$cpus"
  cat <<SCRIPT
# bash would hold a trap back until a command in the foreground ends: the run goes in the background.
$(role 0 "$nodes" scripts/train_rl.py "${same[@]}")
run=\$!
trap 'kill -TERM \$run' TERM
wait \$run || wait \$run
status=\$?
kill \$(jobs -p) 2>/dev/null # samplers and workers would look for the next run
# 143: stopped by SIGTERM, all that is finished is saved; the next turn resumes it
[ \$status -ne 143 ] || scontrol requeue \$SLURM_JOB_ID
exit \$status
SCRIPT
}

# -------------------------------------------------------------------------------------- kubernetes

# One role: name, pods, GPUs of each, the command. Pods of a job know their numbers and names.
pods() {
  local role=$1 count=$2 gpu=$3 key='' limits=''
  shift 3
  local words=("$@")
  if [ "$count" -gt 1 ]; then
    words+=("--coordinator=$role-0.$name:$meet" "--num_processes=$count"
      '--process_id=$(JOB_COMPLETION_INDEX)')
  fi
  [ -z "$secret" ] ||
    key="
        - {name: JAXRL_KEY, valueFrom: {secretKeyRef: {name: $secret, key: key}}}"
  [ "$gpu" -eq 0 ] || limits="
          limits: {nvidia.com/gpu: \"$gpu\"}"
  cat <<MANIFEST
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $role
spec:
  completionMode: Indexed
  completions: $count
  parallelism: $count
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
      containers:
      - name: run
        image: $image
        command: [python$(printf ', "%s"' "${words[@]}")]
        env:
        - {name: PYTHONUNBUFFERED, value: "1"}$key
        resources:
          requests: {cpu: "$cpus"}$limits
        volumeMounts:
        - {name: runs, mountPath: /${folder%%/*}}
        - {name: shm, mountPath: /dev/shm}
      volumes:
      - {name: runs, persistentVolumeClaim: {claimName: $claim}}
      - {name: shm, emptyDir: {medium: Memory}}
MANIFEST
}

kubernetes() {
  local folder=${workdir#/} i there="$name-learner-0.$name:$port"
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
  pods "$name-learner" "$nodes" "$gpus" scripts/train_rl.py "${same[@]}"
  for ((i = 0; i < slices; i++)); do
    pods "$name-sampler$i" "$slice_nodes" "$gpus" scripts/sampler.py "${same[@]}" "--connect=$there"
  done
  for ((i = 0; i < worker_nodes; i++)); do
    pods "$name-worker$i" 1 0 scripts/worker.py "--connect=$there" "--processes=$cpus"
  done
}

case $scheduler in
  slurm)
    [ $fleet -eq 0 ] || [[ $key_file = /* ]] || fail "--slices and --worker_nodes need --key_file"
    hand_in=(sbatch)
    ;;
  kubernetes)
    [ -n "$image" ] && [ -n "$claim" ] || fail "kubernetes needs --image and --claim"
    [ $fleet -eq 0 ] || [ -n "$secret" ] || fail "--slices and --worker_nodes need --secret"
    hand_in=(kubectl apply -f -)
    ;;
  *) fail "--scheduler=$scheduler is neither slurm nor kubernetes" ;;
esac
echo "+ ${hand_in[*]} <<END"
"$scheduler"
echo END
[ -n "$dry_run" ] || "$scheduler" | "${hand_in[@]}"
