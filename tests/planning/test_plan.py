"""Whole plans of a small run: on CPU devices, and for a TPU where libtpu is installed."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from jaxrl_agents.planning import plan as plan_lib
from jaxrl_agents.runs import pod_plan
from tests.policy import tiny

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
  "--config=configs/search_cpu.py",
  "--set=policy.model.embed_dim=128",
  "--set=policy.model.num_kv_heads=2",
  "--set=policy.model.head_dim=32",
  "--set=policy.model.num_layers=2",
  "--set=policy.model.mtp_depth=0",
  "--set=sft.mtp_steps=0",
  "--set=policy.model.vocab_size=5120",
  "--set=sampler.draft_tokens=0",
  "--set=learner.remat=layer",
  "--set=learner.rows_per_microbatch=8",
  "--set=sft.rows_per_step=8",
)


def plan(*arguments):
  return subprocess.run(
    [sys.executable, "scripts/plan_pod.py", *arguments],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=280,
  )


def test_rounds_over_the_cache_are_whole_and_fewer_in_layers_with_a_window():
  alternating = dataclasses.replace(tiny.BIASED, window_tokens=128)
  of = plan_lib.rounds_of_cache
  assert [of(tiny.GQA, position, 256) for position in (100, 255, 256, 1_000)] == [1, 1, 2, 4]
  # With a window the first of them is 0, 0 and 3.
  assert [of(alternating, position, 256) for position in (100, 300, 1_000)] == [1, 2, (4 + 1) / 2]


@pytest.mark.slow
def test_a_plan_for_eight_cpu_devices_adds_up(tmp_path):
  """Bytes exact, by hand; the rest to rounding."""
  file = tmp_path / "plan.json"
  mesh = ("--mesh=fsdp=2,expert=4", "--sampler_mesh=expert=8")
  done = plan(*SMALL, "--topology=cpu:8", *mesh, "--price=3.6", f"--json={file}")
  assert done.returncode == 0, done.stderr
  found = json.loads(file.read_text())
  learner, rollout = found["learner"], found["rollout"]
  width, vocab, experts = 128, 5120, 8
  split_by_width = vocab * width + 2 * (width * 8 * 32 + 4 * 32 * width + 3 * width * 128)
  routed = 2 * experts * 3 * width * 128
  router = 2 * width * experts
  norms = 5 * width + 2 * experts  # and the routers' selection biases
  assert found["model"]["parameters"] == split_by_width + routed + router + norms
  of_a_device = (split_by_width + router) // 8 + routed // 8 + norms
  assert learner["memory"]["parts_bytes"]["parameters"] == 4 * of_a_device + 4  # and the version
  assert learner["memory"]["fits"]
  pages = 2 * 2048 // 8 * 16 * (2 * 2 * 32)
  assert rollout["memory"]["parts_bytes"]["cache"] == 4 * pages
  kinds = {name.partition(" ")[0] for name in learner["programs"][0]["collectives"]}
  assert "all-to-all" in kinds
  speed, cost = learner["tokens_per_s"]["serial"], learner["usd_per_million_tokens"]["serial"]
  assert cost == pytest.approx(8 * 3.6 / 3600 / speed * 1e6)
  assert learner["mfu"]["overlapped"] >= learner["mfu"]["serial"] > 0
  assert "learner on cpu:8: 8 chips, mesh fsdp=2,expert=4, parameters float32" in done.stdout
  assert "binds" in done.stdout


@pytest.mark.slow
def test_a_plan_counts_the_policy_that_a_loss_is_measured_against(tmp_path):
  file = tmp_path / "plan.json"
  options = ("--parts=learner", "--topology=cpu:2", "--mesh=fsdp=2", f"--json={file}")
  for more in (("--set=learner.kl=1e-3",), ("--set=learner.loss=decoupled_ppo",)):
    done = plan(*SMALL, *options, *more)
    assert done.returncode == 0, done.stderr
    parts = json.loads(file.read_text())["learner"]["memory"]["parts_bytes"]
    if "kl" in more[0]:
      # Parameters, which the reference has too, beside a version of four bytes.
      assert 0 <= parts["parameters"] - parts["reference"] <= 16
    else:
      assert "reference" not in parts
    assert "published" not in parts


@pytest.mark.slow
def test_a_plan_counts_the_version_that_differences_are_from(tmp_path):
  file = tmp_path / "plan.json"
  options = ("--parts=learner", "--topology=cpu:2", "--mesh=fsdp=2", f"--json={file}")
  rounded = ("--set=policy.dtype=bfloat16", "--set=learner.canary_bound=0.3")
  done = plan(*SMALL, *options, *rounded, "--set=publish.kind=delta")
  assert done.returncode == 0, done.stderr
  parts = json.loads(file.read_text())["learner"]["memory"]["parts_bytes"]
  assert 0 <= parts["parameters"] - parts["published"] <= 16


def test_a_chip_with_learner_and_sampler_holds_the_peak_of_one_and_what_the_other_keeps():
  learner = {"parts_bytes": {"parameters": 4, "optimizer": 8, "activations": 9}}
  rollout = {"parts_bytes": {"parameters": 4, "cache": 5}, "peak_bytes": 11, "capacity_bytes": 30}
  for peak, whole in ((21, 30), (12, 23)):
    memory = learner | {"peak_bytes": peak, "capacity_bytes": 30}
    together = pod_plan._together(memory, rollout)
    assert together == {"peak_bytes": whole, "capacity_bytes": 30, "fits": True}
  assert not pod_plan._together(learner | {"peak_bytes": 22, "capacity_bytes": 30}, rollout)["fits"]


def test_a_swap_of_weights_may_need_more_memory_than_any_program():
  place = types.SimpleNamespace(
    topology=types.SimpleNamespace(chip=types.SimpleNamespace(devices=2, hbm_bytes=24))
  )
  built = [types.SimpleNamespace(name="decode", peak_bytes=10, fits=True)]
  for swap, peak, where, rest in (
    (9, 20, "decode", {"activations": 6}),
    (13, 26, plan_lib.SWAP, {"next weights": 12}),
  ):
    found = plan_lib.memory(place, built, {"parameters": 4, "cache": 3}, swap)
    assert found["parts_bytes"] == {"parameters": 8, "cache": 6, **rest}
    assert (found["peak_program"], found["peak_bytes"]) == (where, peak)
    assert found["fits"] == (peak <= 24)


@pytest.mark.slow
def test_too_little_memory_is_reported_with_what_to_change():
  done = plan(*SMALL, "--topology=cpu:2", "--parts=rollout", "--set=sampler.num_pages=18000000")
  assert done.returncode == 0, done.stderr
  assert "DOES NOT FIT" in done.stdout
  assert "memory binds" in done.stdout and "lower sampler.num_pages" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--topology=v5q:4x4",), "no chip 'v5q', did you mean"),
    (("--topology=cpu:8", "--mesh=fsdp=3"), "3 places for 8 devices"),
    (("--topology=cpu:8", "--parts=learnt"), "no part 'learnt'; there are learner and rollout"),
    (
      ("--topology=cpu:16", "--mesh=fsdp=16", "--parts=learner"),
      "rows_per_microbatch a multiple of 16",
    ),
  ],
)
def test_what_cannot_be_planned_is_one_line_with_status_2(arguments, message):
  done = plan(*SMALL, *arguments)
  assert done.returncode == 2
  assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra libtpu")
def test_xla_for_tpu_estimates_cycles_of_every_program(tmp_path):
  file = tmp_path / "plan.json"
  done = plan(*SMALL, "--topology=v5e:2x2", "--mesh=fsdp=2,expert=2", f"--json={file}")
  assert done.returncode == 0, done.stderr
  for part in ("learner", "rollout"):
    found = json.loads(file.read_text())[part]
    assert found["compute_from"] == "XLA's cycles; kernels 60% of peak"
    assert all(program["compute_by_file"] for program in found["programs"])
    assert 0 < found["mfu"]["serial"] < 1
