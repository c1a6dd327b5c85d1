"""A whole run in little, from a config to the page: of a recipe, or of an example."""

import json

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import agent_setting, report_page, rl, setup, sft
from jaxrl_agents.runs.workdir import Workdir

SMALL = [
  f"policy.model.{size}"
  for size in (
    "embed_dim=16", "num_layers=1", "num_heads=2", "num_kv_heads=1", "head_dim=8",
    "num_experts=2", "experts_per_token=1", "expert_ffw_dim=8", "mtp_depth=0",
  )
] + [
  "policy.init=scratch", "sampler.draft_tokens=0", "sampler.slots=8", "workers.processes=1",
  "sft.mtp_steps=0", "sft.steps=1", "sft.warmup_steps=0", "sft.demonstration_tasks=3",
  "sft.rollouts_per_task=1", "sft.rows_per_step=2", "learner.steps=1", "learner.groups_per_step=2",
  "learner.group_size=2", "learner.substeps=1", "learner.warmup_steps=0",
  "learner.rows_per_microbatch=2",
  "toggle.phase_steps=1", "eval.tasks=2",
]  # fmt: skip


def run(file, folder, *options):
  """The summary of a run of the config in a file, its metrics by phase, and the page."""
  config = config_lib.load(file, [*SMALL, *options])
  workdir = Workdir(folder / "run")
  corpus = agent_setting.open_tasks(config)
  with setup.devices(config):
    sft.train(config, corpus, workdir)
    summary = rl.train(config, corpus, workdir)
  lines = (workdir.path / "metrics.jsonl").read_text().splitlines()
  rows = {row["phase"]: row for row in map(json.loads, lines)}
  return summary, rows, report_page.write(workdir.path).read_text()
