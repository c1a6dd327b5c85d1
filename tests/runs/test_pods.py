"""The launch scripts: what --dry_run prints is whole, and bad flags end in a line."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TPU = ("scripts/tpu_pod.sh", "--config=configs/gpt_oss_20b_rl.py", "--workdir=/mnt/runs/a")
GPU = ("scripts/gpu_pod.sh", "--config=configs/qwen3_30b_a3b_rl.py", "--workdir=/shared/a")


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
  train = "scripts/train_rl.py --config=configs/gpt_oss_20b_rl.py --workdir=/mnt/runs/a"
  assert f"{train} --set=learner.lr=1e-6" in lines[3].replace("\\ ", " ")
  assert "TimeoutStopSec=60" in lines[3]


def test_cores_are_counted_where_the_cloud_counts_them():
  assert "--accelerator-type=v5p-8 " in printed(*TPU, "--topology=v5p:2x2x1")


def test_the_batch_script_is_bash_and_passes_the_signal_on():
  text = printed(*GPU, "--grace_s=120")
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  assert run("bash", "-n", input=script).returncode == 0
  assert "#SBATCH --signal=B:TERM@120" in script and "kill -TERM $run" in script
  assert "scripts/train_rl.py --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/a" in script


def test_the_batch_script_ends_with_the_status_of_the_run_and_queues_a_stopped_one_again(tmp_path):
  """The script itself, with programs of its own names in place of the cluster's."""
  text = printed(*GPU)
  script = text.partition("<<END\n")[2].rpartition("END\n")[0]
  tools = {
    "scripts/make_venv.sh": "exit 0",
    ".venv/bin/python": "trap 'echo saved >run.log; exit 143' TERM; touch begun; while :; do "
    "sleep 0.1; done",
    "bin/scontrol": 'echo "$@" >>run.log',
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
  process.terminate()
  assert process.wait(30) == 143
  assert (tmp_path / "run.log").read_text() == "saved\nrequeue 7\n"


def test_the_manifest_names_image_claim_and_grace():
  more = ("--scheduler=kubernetes", "--image=registry/jaxrl", "--claim=runs", "--grace_s=90")
  text = printed(*GPU, *more)
  for line in (
    "image: registry/jaxrl",
    "terminationGracePeriodSeconds: 90",
    "- {name: runs, mountPath: /shared}",
    '"--workdir=/shared/a"]',
  ):
    assert line in text


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((*TPU, "--topology=v6e:8x8"), "--topology=v6e:8x8 is not one host"),
    ((*TPU, "--topology=v6e:2x4", "--config=configs/none.py"), "configs/none.py is no file"),
    ((*GPU, "--workdir=runs/a"), "--workdir=runs/a is no absolute path"),
    ((*GPU, "--gpus=many"), "--gpus=many is no positive number"),
    ((*GPU, "--scheduler=lsf"), "--scheduler=lsf is neither slurm nor kubernetes"),
    ((*GPU, "--scheduler=kubernetes"), "kubernetes needs --image and --claim"),
    ((*GPU, "--wrokdir=/a"), "no flag --wrokdir=/a"),
  ],
)
def test_bad_flags_end_in_one_line_with_status_2(arguments, message):
  done = run(*arguments, "--dry_run")
  assert done.returncode == 2
  assert done.stderr.startswith("error: ") and message in done.stderr
  assert done.stderr.count("\n") == 1
