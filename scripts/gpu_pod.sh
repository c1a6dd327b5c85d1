#!/usr/bin/env bash
# A run on a node of GPUs under SLURM or Kubernetes: writes the batch script or the manifest and hands
# it in. Learner, sampler and workers live in one process on the node.
#
#   scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/runs/a
#   scripts/gpu_pod.sh --dry_run --scheduler=kubernetes --image=REGISTRY/jaxrl --claim=runs \
#     --config=configs/qwen3_30b_a3b_rl.py --workdir=/runs/a
#
# --scheduler  slurm or kubernetes                                                  [slurm]
# --workdir    folder of the run, on a disk that outlives the node
# --name       of the job                                                           [jaxrl]
# --gpus       of the node                                                          [8]
# --cpus       of the node: workers.processes of the config, and a few              [96]
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
dry_run='' overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --config=* | --workdir=* | --scheduler=* | --name=* | --gpus=* | --cpus=* | --hours=* | \
      --grace_s=* | --image=* | --claim=*)
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
for number in gpus cpus hours grace_s; do
  [[ ${!number} =~ ^[1-9][0-9]*$ ]] || fail "--$number=${!number} is no positive number"
done
train=(scripts/train_rl.py "--config=$config" "--workdir=$workdir" "${overrides[@]}")

slurm() {
  cat <<SCRIPT
#!/usr/bin/env bash
#SBATCH --job-name=$name
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=$gpus
#SBATCH --cpus-per-task=$cpus
#SBATCH --time=$hours:00:00
#SBATCH --signal=B:TERM@$grace_s
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$name-%j.log
set -u
cd $(printf %q "$PWD")
scripts/make_venv.sh .venv cuda || exit
# bash would hold a trap back until a command in the foreground ends: the run goes in the background.
.venv/bin/python$(printf ' %q' "${train[@]}") &
run=\$!
trap 'kill -TERM \$run' TERM
wait \$run || wait \$run
status=\$?
# 143: stopped by SIGTERM, all that is finished is saved; the next turn resumes it
[ \$status -ne 143 ] || scontrol requeue \$SLURM_JOB_ID
exit \$status
SCRIPT
}

kubernetes() {
  local folder=${workdir#/}
  cat <<MANIFEST
apiVersion: batch/v1
kind: Job
metadata:
  name: $name
spec:
  backoffLimit: 1000
  podFailurePolicy:
    rules:
    - action: FailJob  # bad input: trying again will not help
      onExitCodes: {operator: In, values: [2]}
    - action: Ignore  # the node was taken back: the next pod resumes the run
      onPodConditions: [{type: DisruptionTarget}]
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: $grace_s
      containers:
      - name: run
        image: $image
        command: [python$(printf ', "%s"' "${train[@]}")]
        resources:
          requests: {cpu: "$cpus"}
          limits: {nvidia.com/gpu: "$gpus"}
        volumeMounts:
        - {name: runs, mountPath: /${folder%%/*}}
        - {name: shm, mountPath: /dev/shm}
      volumes:
      - {name: runs, persistentVolumeClaim: {claimName: $claim}}
      - {name: shm, emptyDir: {medium: Memory}}
MANIFEST
}

case $scheduler in
  slurm) hand_in=(sbatch) ;;
  kubernetes)
    [ -n "$image" ] && [ -n "$claim" ] || fail "kubernetes needs --image and --claim"
    hand_in=(kubectl apply -f -)
    ;;
  *) fail "--scheduler=$scheduler is neither slurm nor kubernetes" ;;
esac
echo "+ ${hand_in[*]} <<END"
"$scheduler"
echo END
[ -n "$dry_run" ] || "$scheduler" | "${hand_in[@]}"
