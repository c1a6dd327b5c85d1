"""Writes a policy as a Hugging Face checkpoint.

    python scripts/export_hf.py --checkpoint=FOLDER --hf_config=FOLDER --out=FOLDER

--checkpoint is W/trained or W/warm_start of a run, or what scripts/import_hf.py or export_policy.py
wrote; --hf_config is the folder of the checkpoint that the policy came from. Its config.json and
tokenizer are copied, and weights are written in the dtype that it names.
"""

import dataclasses
import pathlib

from absl import flags

from jaxrl_agents import file_digests
from jaxrl_agents.hf import convert, families
from jaxrl_agents.runs import entry_point, weight_files

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "folder of the policy", required=True)
_HF_CONFIG = flags.DEFINE_string("hf_config", None, "folder with its config.json", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def check_sizes(checkpoint: pathlib.Path, hf_config: str) -> None:
  """Raises ValueError where the policy and the config.json are two different networks."""
  ours = dataclasses.asdict(weight_files.load_sizes(checkpoint))
  theirs = dataclasses.asdict(families.read(hf_config).cfg)
  for name, value in ours.items():
    if name != "kernels" and value != theirs[name]:
      raise ValueError(f"{name} is {value!r} in {checkpoint} and {theirs[name]!r} in {hf_config}")


def check_whole(checkpoint: pathlib.Path) -> None:
  """Raises ValueError where the files of the policy differ from what was written."""
  if file_digests.is_there(checkpoint) and (problem := file_digests.damage(checkpoint)):
    raise ValueError(
      f"the weights in {checkpoint} are damaged: {problem}; restore the folder from a copy, or "
      "write it again"
    )


def main() -> None:
  """Exports the weights and says where they are."""
  checkpoint = pathlib.Path(_CHECKPOINT.value)
  check_sizes(checkpoint, _HF_CONFIG.value)
  check_whole(checkpoint)
  shards = convert.export_weights(checkpoint / weight_files.WEIGHTS, _HF_CONFIG.value, _OUT.value)
  print(f"{len(shards)} shards -> {_OUT.value}")


if __name__ == "__main__":
  entry_point.run(main)
