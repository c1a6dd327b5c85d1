"""The launch scripts: what --dry_run prints is whole, and bad flags end in a line."""

import os
import pathlib
import shutil
import signal
import subprocess
import tarfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
TPU = ("scripts/tpu_pod.sh", "--config=configs/search_cpu.py", "--workdir=/mnt/runs/a")
GPU = ("scripts/gpu_pod.sh", "--config=configs/search_cpu.py", "--workdir=/shared/a")

KUBERNETES = ("--scheduler=kubernetes", "--image=i", "--claim=runs")
IGNORED = ("--set", "policy.init=policies/a")


def run(*arguments, **kept):
  return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, **kept)


def printed(*arguments):
  """What a dry run prints. An empty PATH but for the shell's own tools: nothing may be called."""
  done = run(*arguments, "--dry_run")
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_a_tpu_slice_is_asked_for_filled_and_started_with_the_entry_point_of_a_laptop():
  text = printed(*TPU, "--topology=v6e:2x4", "--spot", "--set", "learner.lr=1e-6", "--grace_s=60")
  lines = text.splitlines()
  assert all(line.startswith("+ gcloud compute tpus ") for line in lines)
  assert "--accelerator-type=v6e-8" in lines[0] and "--spot" in lines[0]
  train = "scripts/train_rl.py --config=configs/search_cpu.py --workdir=/mnt/runs/a"
  (service,) = [line for line in lines if "systemd-run" in line]
  assert f"{train} --set=learner.lr=1e-6" in service.replace("\\ ", " ")
  assert "TimeoutStopSec=60" in service


CLOUD = r"""#!/usr/bin/env bash
# Stands in for gcloud: knows the state of each machine by a file of its name.
case "$*" in
  *networkEndpoints*) echo 10.0.0.2 ;;
  "compute tpus queued-resources describe "* | "compute instances describe "*)
    [ "$3" = describe ] && machine=$4 || machine=$5
    [ "$machine" != denied ] || { echo "ERROR: PERMISSION_DENIED" >&2; exit 1; }
    cat "$STATES/$machine" 2>/dev/null || { echo "ERROR: NOT_FOUND: $machine" >&2; exit 1; }
    ;;
  "compute tpus tpu-vm scp "*) cp "$5" "$STATES/copied.tar.gz" ;;
  "compute tpus queued-resources create "*) echo ACTIVE >"$STATES/$5" ;;
  "compute tpus queued-resources delete "*) rm "$STATES/$5" ;;
esac
"""


@pytest.fixture
def cloud(tmp_path):
  """Calls scripts/tpu_pod.sh of tmp_path/checkout, in a cloud with the machines {name: state}."""
  checkout, states, tools = tmp_path / "checkout", tmp_path / "states", tmp_path / "tools"
  for folder in (checkout / "scripts", states, tools):
    folder.mkdir(parents=True)
  shutil.copy(ROOT / "scripts/tpu_pod.sh", checkout / "scripts")
  (checkout / "config.py").touch()
  assert run("git", "init", str(checkout)).returncode == 0
  (tools / "gcloud").write_text(CLOUD)
  (tools / "gcloud").chmod(0o755)

  def called(machines, *arguments):
    for name, state in machines.items():
      (states / name).write_text(f"{state}\n")
    command = (checkout / "scripts/tpu_pod.sh", "--config=config.py", "--workdir=/mnt/a")
    path = f"{tools}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "STATES": str(states)}
    return run(*command, "--topology=v6e:2x4", *arguments, env=environment)

  return called


def told(done):
  """What a call of `cloud` told the cloud to do, one line each."""
  assert done.returncode == 0, done.stderr
  prefix = "+ gcloud compute "
  lines = done.stdout.replace("\\", "").splitlines()
  return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


@pytest.mark.parametrize(
  ("state", "expected"),
  [
    ("", ["create"]),
    ("ACTIVE", []),
    ("SUSPENDED", ["delete", "create"]),
    ("FAILED", ["delete", "create"]),
  ],
)
def test_a_slice_that_is_there_is_kept_and_one_that_was_taken_back_asked_for_again(
  cloud, state, expected
):
  lines = told(cloud({"jaxrl": state} if state else {}))
  queued = [line.split()[2:4] for line in lines if line.startswith("tpus queued-resources ")]
  assert queued == [[word, "jaxrl"] for word in expected]
  # Whatever runs there is stopped before its files are replaced, and started anew.
  rest = [line for line in lines if line.startswith("tpus tpu-vm ")]
  assert "systemctl --user stop jaxrl" in rest[0]
  assert "scripts/train_rl.py" in rest[-2] and "journalctl" in rest[-1]


def test_a_machine_for_workers_that_was_taken_back_is_started_again(cloud):
  machines = {"jaxrl": "ACTIVE", "jaxrl-worker0": "RUNNING", "jaxrl-worker1": "TERMINATED"}
  lines = told(cloud(machines, "--worker_vms=3", "--token_file=config.py"))
  asked = [line.split()[1:3] for line in lines if line.startswith("instances ")]
  assert asked == [["start", "jaxrl-worker1"], ["create", "jaxrl-worker2"]]


def test_a_cloud_that_does_not_answer_ends_the_call_before_anything_is_asked_for(cloud):
  done = cloud({}, "--name=denied")
  assert done.returncode == 2 and done.stderr == "error: ERROR: PERMISSION_DENIED\n"
  assert "create" not in done.stdout


def test_stop_lets_the_learner_save_and_deletes_the_machines_that_are_there(cloud):
  machines = {"jaxrl": "ACTIVE", "jaxrl-sampler1": "SUSPENDED", "jaxrl-worker0": "RUNNING"}
  more = ("--slices=2", "--worker_vms=2", "--token_file=config.py", "--stop")
  lines = told(cloud(machines, *more))
  assert lines[0].startswith("tpus tpu-vm ssh jaxrl ")
  assert "systemctl --user stop jaxrl" in lines[0]
  assert lines[1:] == [
    "tpus queued-resources delete jaxrl --force --quiet",
    "tpus queued-resources delete jaxrl-sampler1 --force --quiet",
    "instances delete jaxrl-worker0 --quiet",
  ]


def test_the_machines_get_the_files_that_git_knows_or_would_add(cloud, tmp_path):
  checkout = tmp_path / "checkout"
  for name in ("removed.py", "policies/large", ".venv/bin/python"):
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).touch()
  assert run("git", "-C", str(checkout), "add", "removed.py").returncode == 0
  (checkout / "removed.py").unlink()
  (checkout / ".gitignore").write_text(".venv*/\n/policies/\n")
  assert cloud({}).returncode == 0
  with tarfile.open(tmp_path / "states/copied.tar.gz") as archive:
    assert sorted(archive.getnames()) == [".gitignore", "config.py", "scripts/tpu_pod.sh"]


def test_stop_removes_what_was_handed_in():
  more = ("--slices=1", "--token_file=/shared/token", "--name=x", "--stop")
  waiting, playing = printed(*GPU, *more).splitlines()
  assert waiting.startswith("+ scancel --user=") and waiting.endswith("--name=x --state=PENDING")
  assert playing.endswith("--name=x --batch --signal=USR1")
  more = (*more, "--scheduler=kubernetes", "--image=i", "--claim=runs", "--secret=key")
  assert printed(*GPU, *more, "--grace_s=60").splitlines() == [
    "+ kubectl delete --ignore-not-found --cascade=foreground --timeout=120s job x-train-rl",
    "+ kubectl delete --ignore-not-found raycluster x",
    "+ kubectl delete --ignore-not-found service x",
  ]


def test_cores_are_counted_where_the_cloud_counts_them():
  assert "--accelerator-type=v5p-8 " in printed(*TPU, "--topology=v5p:2x2x1")


def test_the_batch_script_is_bash_and_passes_the_signal_on():
  text = printed(*GPU, "--grace_s=120")
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  assert run("bash", "-n", input=script).returncode == 0
  assert "#SBATCH --signal=B:TERM@120" in script and "kill -TERM $run" in script
  assert "scripts/train_rl.py --config=configs/search_cpu.py --workdir=/shared/a" in script


@pytest.mark.slow
@pytest.mark.parametrize(
  ("sent", "log"), [(signal.SIGTERM, "saved\nrequeue 7\n"), (signal.SIGUSR1, "saved\n")]
)
def test_the_batch_script_queues_a_run_again_that_was_interrupted_and_not_one_that_was_stopped(
  tmp_path, sent, log
):
  """The script itself, with programs of its own names in place of the cluster's."""
  text = printed(*GPU)
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  tools = {
    "scripts/make_venv.sh": "exit 0",
    ".venv/bin/python": "trap 'echo saved >run.log; exit 143' TERM; touch begun; while :; do "
    "sleep 0.1; done",
    "bin/scontrol": 'echo "$@" >>run.log',
    "bin/srun": 'while [[ $1 = -* ]]; do shift; done; exec "$@"',
  }
  for name, body in tools.items():
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{body}\n")
    file.chmod(0o755)
  script = script.replace(f"cd {ROOT}", f"cd {tmp_path}")
  path = f"{tmp_path}/bin:/usr/bin:/bin"
  environment = {"PATH": path, "SLURM_JOB_ID": "7"}
  process = subprocess.Popen(["bash", "-c", script], env=environment)
  while not (tmp_path / "begun").exists():
    assert process.poll() is None
  process.send_signal(sent)
  assert process.wait(30) == 143
  assert (tmp_path / "run.log").read_text() == log


def test_slices_and_workers_are_components_of_one_job_and_nodes_of_one_cluster():
  more = ("--nodes=2", "--slices=2", "--worker_nodes=4", "--token_file=/shared/token")
  text = printed(*GPU, *more, "--set", "lora.targets=('qkv','out')")
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  assert run("bash", "-n", input=script).returncode == 0
  sizes = [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH --nodes")]
  assert sizes == ["--nodes=2", "--nodes=1", "--nodes=1", "--nodes=4"]
  assert script.count("#SBATCH hetjob") == 3
  assert "RAY_AUTH_MODE=token" in script and "RAY_AUTH_TOKEN_PATH=/shared/token" in script
  # What each step of the job runs, as its own shell reads it.
  said = {"SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "HEAD": "n0"}
  steps = [line.removesuffix(" &") for line in script.splitlines() if line.startswith("srun")]
  show = "exec() { echo $@; }; scontrol() { echo n7; echo n8; }; export -f exec scontrol; "
  show += 'srun() { while [[ $1 = -* ]]; do shift; done; "$@"; }; '
  found = [run("bash", "-c", show + step, env={**os.environ, **said}).stdout for step in steps]
  train = "--config=configs/search_cpu.py --workdir=/shared/a --set=workers.processes=96 "
  train += "--set=lora.targets=('qkv','out') --set=fleet.backend=ray --set=fleet.address=n0:6379 "
  train += "--set=sampler.slices=2 --set=sampler.hosts=1"
  ray = ".venv/bin/ray start --address=n0:6379 "
  assert found == [
    ray + '--num-cpus=0 --block --resources={"slice0": 1}\n',
    ray + '--num-cpus=0 --block --resources={"slice1": 1}\n',
    ray + "--num-cpus=96 --block --num-gpus=0\n",
    f".venv/bin/python scripts/train_rl.py {train} --coordinator=n7:6380 --num_processes=2 "
    "--process_id=1\n",
  ]


def test_weights_of_a_config_may_be_in_the_checkout_that_the_nodes_of_slurm_share():
  assert "policy.init=policies/a" in printed(*GPU, *IGNORED)


def test_weights_may_be_on_the_shared_disk():
  named = ("--set=policy.init=/mnt/p", "--set=policy.tokenizer=/mnt/p")
  config = "--config=configs/gpt_oss_20b_rl.py"
  assert " ".join(named) in printed(*TPU, config, "--topology=v6e:8x8", *named).replace("\\", "")
  assert named[0] in printed(*GPU, config, *KUBERNETES, *named)


def test_options_of_the_cluster_stand_in_every_part_of_the_job_and_those_of_workers_in_theirs():
  more = ("--worker_nodes=2", "--token_file=/shared/token", "--sbatch=--partition=gpu")
  more = (*more, "--sbatch=--account=a --qos=q", "--worker_sbatch=--partition=cpu", "--cpus=8")
  script = printed(*GPU, *more)
  first, second = script.partition("set -u\n")[0].split("#SBATCH hetjob\n")
  size = " --ntasks-per-node=1 --cpus-per-task=8"
  mine = ["#SBATCH --partition=gpu", "#SBATCH --account=a --qos=q"]
  assert first.splitlines()[-4:] == [f"#SBATCH --nodes=1{size}", *mine, "#SBATCH --gpus-per-node=8"]
  assert second.splitlines() == [f"#SBATCH --nodes=2{size}", *mine, "#SBATCH --partition=cpu"]
  steps = [line for line in script.splitlines() if line.startswith("srun ")]
  assert len(steps) == 2 and all("--cpus-per-task=8 " in step for step in steps)


def test_the_warm_up_and_an_evaluation_run_as_the_training_does():
  ends = "/train_sft.py --config=configs/search_cpu.py --workdir=/shared/a --set=eval.tasks=9"
  more = ("--set", "eval.tasks=9")
  assert ends in printed(*GPU, "--script=train_sft", *more)
  job = printed(*GPU, *KUBERNETES, "--script=train_sft", "--nodes=2", *more)
  assert "name: jaxrl-train-sft\n" in job and "jaxrl-train-sft-0.jaxrl:6380" in job
  warm_up = printed(*TPU, "--topology=v6e:4x4", "--script=train_sft").replace("\\", "")
  assert "scripts/train_sft.py --config=configs/search_cpu.py --workdir=/mnt/runs/a" in warm_up
  assert "--coordinator=FIRST_HOST_OF_jaxrl:6380" in warm_up
  words = "/evaluate.py --config=configs/search_cpu.py --checkpoint=/mnt/runs/a "
  words += "--json=/mnt/runs/a/evaluation.json --set=eval.tasks=9"
  text = printed(*TPU, "--topology=v6e:2x4", "--script=evaluate", *more).replace("\\", "")
  assert words in text
  # Demonstrations are played by workers on the cluster too.
  workers = ("--script=train_sft", "--worker_nodes=2", "--token_file=/shared/token")
  assert "--set=fleet.backend=ray" in printed(*GPU, *workers)


def test_samplers_without_nodes_for_workers_have_the_workers():
  text = printed(*GPU, "--slices=1", "--token_file=/shared/token", "--cpus=32")
  (node,) = [line for line in text.splitlines() if "ray start --address" in line]
  assert "--num-cpus=32 " in node


def test_the_evaluator_has_a_node_of_its_own_which_offers_its_resource():
  more = ("--evaluator_node", "--slices=1", "--worker_nodes=2", "--set", "evaluator.every=4")
  text = printed(*GPU, *more, "--token_file=/shared/token", "--gpus=4")
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  component = script.split("#SBATCH hetjob\n")[3].splitlines()
  assert "--nodes=1 " in component[0] and component[1] == "#SBATCH --gpus-per-node=4"
  (node,) = [line for line in script.splitlines() if '"evaluator": 1' in line.replace("\\", "")]
  assert "--het-group=3 " in node and "--num-cpus=0 " in node
  assert "--set=evaluator.every=4 --set=evaluator.on_node=True" in script
  more = (*more, "--scheduler=kubernetes", "--image=i", "--claim=runs", "--secret=key")
  cluster = yaml.safe_load(printed(*GPU, *more).partition("<<END\n")[2].split("---\n")[1])
  group = cluster["spec"]["workerGroupSpecs"][-1]
  assert (group["groupName"], group["replicas"]) == ("evaluator", 1)
  assert group["rayStartParams"] == {"num-cpus": "0", "resources": '"{\\"evaluator\\": 1}"'}
  resources = group["template"]["spec"]["containers"][0]["resources"]
  assert resources["limits"] == {"nvidia.com/gpu": "8"}


def test_the_evaluator_of_a_tpu_run_has_a_slice_of_one_host(tmp_path):
  token = tmp_path / "token"
  token.touch()
  more = ("--topology=v5p:4x4x4", "--worker_vms=1", "--evaluator_topology=v6e:2x4")
  more = (*more, "--set", "evaluator.every=4")
  text = printed(*TPU, *more, f"--token_file={token}").replace("\\", "")
  kinds = [line.split("accelerator-type=")[1].split()[0] for line in text.splitlines()[:2]]
  assert kinds == ["v5p-128", "v6e-8"]
  (node,) = [line for line in text.splitlines() if '"evaluator": 1' in line]
  assert "ssh jaxrl-evaluator " in node and "--num-cpus=0 " in node and "systemd-run" in node
  assert "--set=evaluator.on_node=True" in text


def test_on_kubernetes_the_learner_is_a_job_and_the_rest_a_ray_cluster():
  more = ("--scheduler=kubernetes", "--image=i", "--claim=runs", "--secret=key", "--nodes=2")
  text = printed(*GPU, *more, "--slices=1", "--worker_nodes=3").partition("<<END\n")[2]
  service, cluster, learner = (
    yaml.safe_load(each) for each in text.removesuffix("END\n").split("---\n")
  )
  assert [each["kind"] for each in (service, cluster, learner)] == ["Service", "RayCluster", "Job"]
  groups = cluster["spec"]["workerGroupSpecs"]
  head = cluster["spec"]["headGroupSpec"]
  assert [each["replicas"] for each in groups] == [1, 3]
  assert [each["rayStartParams"] for each in (head, *groups)] == [
    {"num-cpus": "0", "port": "6379"},
    {"num-cpus": "0", "resources": '"{\\"slice0\\": 1}"'},
    {"num-cpus": "96"},
  ]
  pods = [each["template"]["spec"]["containers"][0] for each in (head, *groups, learner["spec"])]
  gpus = [pod["resources"].get("limits", {}).get("nvidia.com/gpu") for pod in pods]
  assert gpus == [None, "8", None, "8"]
  token = {"secretKeyRef": {"name": "key", "key": "auth_token"}}
  assert all({"name": "RAY_AUTH_TOKEN", "valueFrom": token} in pod["env"] for pod in pods)
  bash, _, script, _, *train = pods[-1]["command"]
  join = "ray start --address=jaxrl-head-svc:6379 --num-cpus=0 --num-gpus=0"
  assert bash == "bash" and script == f'until {join}; do sleep 5; done; exec "$@"'
  assert train[:2] == ["python", "scripts/train_rl.py"]
  assert "--set=fleet.address=jaxrl-head-svc:6379" in train
  assert train[-3:] == [
    "--coordinator=jaxrl-train-rl-0.jaxrl:6380",
    "--num_processes=2",
    "--process_id=$(JOB_COMPLETION_INDEX)",
  ]


def test_slices_and_worker_machines_of_a_tpu_run_join_the_cluster_of_its_first_host(tmp_path):
  token = tmp_path / "token"
  token.touch()
  more = ("--topology=v5p:4x4x4", "--slices=1", "--slice_topology=v5p:2x2x2", "--worker_vms=1")
  text = printed(*TPU, *more, f"--token_file={token}").replace("\\", "")
  kinds = [line.split("accelerator-type=")[1].split()[0] for line in text.splitlines()[:2]]
  assert kinds == ["v5p-128", "v5p-16"]
  services = [line for line in text.splitlines() if "systemd-run" in line]
  head, learner, sampler, worker = services
  assert "ray start --head --port=6379 --num-cpus=0" in head and "--worker=0" in head
  address = "FIRST_HOST_OF_jaxrl:6379"
  assert f"--set=fleet.address={address} --set=sampler.slices=1 --set=sampler.hosts=2" in learner
  assert "--coordinator=FIRST_HOST_OF_jaxrl:6380" in learner
  assert f'--address={address} --block --num-cpus=0 --resources={{"slice0": 1}}' in sampler
  assert f"--address={address} --block --num-cpus=64" in worker
  assert all("RAY_AUTH_TOKEN_PATH=%h/.ray_token" in line for line in services)


def test_the_manifest_names_image_claim_and_grace():
  more = ("--scheduler=kubernetes", "--image=registry/jaxrl", "--claim=runs", "--grace_s=90")
  text = printed(*GPU, *more)
  for line in (
    "image: registry/jaxrl",
    "terminationGracePeriodSeconds: 90",
    "- {name: runs, mountPath: /shared}",
    'command: ["python", "scripts/train_rl.py", "--config=configs/search_cpu.py", '
    '"--workdir=/shared/a"]',
  ):
    assert line in text


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((*TPU, "--topology=v6e:eight"), "--topology=v6e:eight is no topology"),
    ((*TPU, *IGNORED, "--topology=v6e:2x4"), "policy.init=policies/a is not among the files"),
    ((*GPU, *IGNORED, *KUBERNETES), "policy.init=policies/a is not in the image"),
    (
      (*GPU, *KUBERNETES, "--config=configs/qwen3_4b_rl.py"),
      "policy.init=policies/qwen3_4b is not in the image",
    ),
    ((*TPU, "--topology=v6e:2x4", "--slices=1"), "--slices and --worker_vms need --token_file"),
    ((*GPU, "--slices=1"), "--slices and --worker_nodes need --token_file"),
    ((*TPU, "--topology=v6e:2x4", "--config=configs/none.py"), "configs/none.py is no file"),
    ((*GPU, "--evaluator_node"), "--evaluator_node needs --slices or --worker_nodes"),
    ((*GPU, "--evaluator_node", "--slices=1"), "needs --set evaluator.every=4"),
    ((*GPU, "--evaluator_node", "--slices=1", "--slice_nodes=2"), "needs --slice_nodes=1"),
    (
      (*TPU, "--topology=v6e:2x4", "--evaluator_topology=v6e:4x4"),
      "--evaluator_topology=v6e:4x4 has 4 hosts",
    ),
    (
      (*TPU, "--topology=v6e:2x4", "--evaluator_topology=v6e:2x4"),
      "--evaluator_topology needs --slices or --worker_vms",
    ),
    ((*GPU, "--workdir=runs/a"), "--workdir=runs/a is no absolute path"),
    ((*GPU, "--gpus=many"), "--gpus=many is no positive number"),
    ((*GPU, "--scheduler=lsf"), "--scheduler=lsf is neither slurm nor kubernetes"),
    ((*GPU, "--scheduler=kubernetes"), "kubernetes needs --image and --claim"),
    ((*GPU, "--script=train"), "--script=train is none of train_rl, train_sft, evaluate"),
    ((*GPU, "--script=train_sft", "--slices=1"), "--script=train_sft has no use for --slices"),
    (
      (*TPU[:1], "--config=/etc/hostname", *TPU[2:], "--topology=v6e:2x4"),
      "--config=/etc/hostname is not among the files that the machines get",
    ),
    ((*GPU, "--sbatch=gpu"), "--sbatch=gpu is no option of sbatch"),
    ((*GPU, "--worker_sbatch=--qos=q"), "--worker_sbatch needs --worker_nodes"),
    ((*GPU, *KUBERNETES, "--sbatch=--qos=q"), "--sbatch has no effect with --scheduler=kubernetes"),
    ((*GPU, "--wrokdir=/a"), "no flag --wrokdir=/a"),
  ],
)
def test_bad_flags_end_in_one_line_with_status_2(arguments, message):
  done = run(*arguments, "--dry_run")
  assert done.returncode == 2
  assert done.stderr.startswith("error: ") and message in done.stderr
  assert done.stderr.count("\n") == 1
