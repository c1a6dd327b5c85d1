"""Writes a Hugging Face checkpoint as a folder that `policy.init` can name.

    python scripts/import_hf.py --hf=FOLDER --out=FOLDER

FOLDER of --hf holds config.json and *.safetensors of Qwen3 (dense or mixture), DeepSeek-V3, Kimi
K2, Kimi K2.5 (whose language model is read) or gpt-oss; weights of 4 and 8 bits become bfloat16.
Beside the weights go policy.json, the numbers that `policy.model` must have, and the tokenizer and
chat template where there are any: the folder can be `policy.tokenizer` too. Memory holds one tensor
at a time.
"""

import pathlib

from absl import flags

from jaxrl_agents import chat, file_digests
from jaxrl_agents.hf import convert
from jaxrl_agents.policy import params
from jaxrl_agents.runs import entry_point, weight_files

_HF = flags.DEFINE_string("hf", None, "folder of the checkpoint", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def main() -> None:
  """Imports the weights and says what they are."""
  out = pathlib.Path(_OUT.value)
  if out.resolve() == pathlib.Path(_HF.value).resolve():
    raise ValueError(f"--hf and --out are both {out}; name another folder to write")
  cfg = convert.import_weights(_HF.value, out / weight_files.WEIGHTS)
  weight_files.save_sizes(cfg, out)
  tokenizer = convert.copy_tokenizer(_HF.value, out)
  file_digests.write(out)
  print(
    f"{params.count(cfg):,} numbers of {cfg.num_layers} layers -> {out / weight_files.WEIGHTS}; "
    f"{_spoken(out) if tokenizer else 'no tokenizer.json'}"
  )


def _spoken(folder: pathlib.Path) -> str:
  """What is known of the chat format of the imported tokenizer."""
  try:
    return f"tokenizer.json copied, its chat format is {chat.load(str(folder)).name!r}"
  except ValueError as error:
    return f"tokenizer.json copied, but {error}"


if __name__ == "__main__":
  entry_point.run(main)
