"""How many rollouts an update of reinforcement learning needs: the noise of a policy's gradient.

    python scripts/gradient_noise.py --config=configs/search_cpu.py --checkpoint=W

Plays tasks of the train split as a step does, with `learner.group_size` rollouts each at the
sampler's temperature, takes the gradient of each of several equal parts at the same weights, and
prints what `learner.gradient_noise` estimates. Where an update has far fewer rollouts than have as
much noise as signal, the policy mostly drifts.
"""

from __future__ import annotations

import json

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.learner import gradient_noise
from jaxrl_agents.runs import agent_setting, config_flags, entry_point, evaluation, rl, setup

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "", "a workdir, a folder of weights, or a shipped policy; by default policy.init"
)
_TASKS = flags.DEFINE_integer("tasks", 256, "tasks to play", lower_bound=3)
_PARTS = flags.DEFINE_integer("parts", 16, "equal parts, a gradient each", lower_bound=3)


def main() -> None:
  """Plays, takes the gradients, prints."""
  config = _config()
  learner = config.learner
  config = config_lib.with_overrides(
    config,
    [f"eval.rollouts={learner.group_size}", f"eval.temperature={config.sampler.temperature}"],
  )
  checkpoint = _CHECKPOINT.value or config.policy.init
  folder = str(evaluation.newest_policy(checkpoint))
  setup.cores_as_devices(config)
  setup.compilation_cache(config)
  with setup.devices(config):
    corpus = agent_setting.open_tasks(config)
    tasks = corpus.sample("train", _TASKS.value, config.seed)
    found = gradient_noise.of_groups(
      setup.loaded(config, folder),
      evaluation.by_checkpoint(config, corpus, checkpoint, tasks, label="rollouts"),
      cfg=config.policy.model,
      learner=learner,
      objective=rl.objective(config),
      parts=_PARTS.value,
    )
  found["rollouts_of_an_update"] = learner.groups_per_step * learner.group_size / learner.substeps
  print(json.dumps(found, indent=2))


if __name__ == "__main__":
  entry_point.run(main)
