"""Plans a run on chips that are not there: compiles its steps for a topology, on this CPU.

    python scripts/plan_pod.py --config=configs/gpt_oss_20b_rl.py --topology=v5e:4x4
    python scripts/plan_pod.py --config=configs/kimi_k2_rl.py --topology=v5p:8x16x16 \\
      --mesh=fsdp=16,expert=128 --price=4.2 --json=plan.json
    python scripts/plan_pod.py --topology=cpu:2

Prints memory per chip against its capacity, FLOPs, the bytes that collectives move, time of a step,
MFU, tokens per second and cost of the learner step and of a decode step of the sampler, what binds
them and what to change. A TPU topology (v5e, v5p, v6e, tpu7x) needs the extra "libtpu". For h100
and h200 programs are lowered, and compiled for the CPU in its place: memory and time are then
estimates.
"""

import json
import pathlib

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, pod_plan

_config = config_flags.define()
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "topology of the learner: v5p:8x16x16, v6e:4x4, h200:8, cpu:8, …", required=True
)
_MESH = flags.DEFINE_string(
  "mesh",
  "",
  "mesh of the learner: fsdp=16,expert=128; by default the config's, or one that divides",
)
_SAMPLER_TOPOLOGY = flags.DEFINE_string(
  "sampler_topology", "", "topology of one sampler; by default the learner's"
)
_SAMPLER_MESH = flags.DEFINE_string("sampler_mesh", "", "mesh of one sampler, as --mesh")
_PARTS = flags.DEFINE_list("parts", list(pod_plan.PARTS), "which to compile: learner, rollout")
_PRICE = flags.DEFINE_float("price", 0.0, "USD per chip and hour; 0 leaves costs out", 0.0)
_JSON = flags.DEFINE_string("json", None, "also write the plan to this file")


def main() -> None:
  """Loads the config, plans, prints."""
  found = pod_plan.planned(
    _config(),
    _TOPOLOGY.value,
    _MESH.value,
    sampler_slice=_SAMPLER_TOPOLOGY.value,
    sampler_mesh=_SAMPLER_MESH.value,
    parts=_PARTS.value,
    usd_per_chip_hour=_PRICE.value,
  )
  print(pod_plan.text(found))
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
