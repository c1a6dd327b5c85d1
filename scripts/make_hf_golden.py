"""Makes tests/hf/golden: what `transformers` computes for a tiny model of every supported family.

    pip install -e '.[transformers]'
    python scripts/make_hf_golden.py

Each file has the config, the names and shapes of the tensors as `save_pretrained` writes them,
token ids, their logits and greedy replies. The weights follow from the names
(`checkpoints.golden_weight`), so they are not stored. tests/hf/test_golden.py compares, without
torch.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import numpy as np
from absl import flags

from jaxrl_agents.runs import entry_point

ROOT = pathlib.Path(__file__).parents[1]

_OUT = flags.DEFINE_string("out", str(ROOT / "tests/hf/golden"), "Folder of the files.")

ROWS, LENGTH, PROMPT, NEW = 2, 21, 9, 12


def main() -> None:
  """Writes a file for each family and prints its size."""
  sys.path.insert(0, str(ROOT))
  try:
    import torch
    import transformers
  except ImportError as error:
    raise ValueError(f"{error}; pip install -e '.[transformers]'") from error
  from tests.hf import checkpoints

  folder = pathlib.Path(_OUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  for name, published in checkpoints.CONFIGS.items():
    config = dict(published)
    if "num_nextn_predict_layers" in config:
      config["num_nextn_predict_layers"] = 0  # save_pretrained leaves prediction modules out
    as_known = config | ({"model_type": "deepseek_v3"} if name == "kimi_k2" else {})
    random = transformers.AutoModelForCausalLM.from_config(
      transformers.AutoConfig.for_model(**as_known), attn_implementation="eager"
    )
    with tempfile.TemporaryDirectory() as saved:
      random.save_pretrained(saved)
      shapes = checkpoints.shapes(pathlib.Path(saved))
      weights = {
        tensor: checkpoints.golden_weight(tensor, shape) for tensor, shape in shapes.items()
      }
      (file,) = pathlib.Path(saved).glob("*.safetensors")
      checkpoints.write_file(file, weights)
      model = transformers.AutoModelForCausalLM.from_pretrained(
        saved, attn_implementation="eager", dtype=torch.float32
      ).eval()
    tokens = np.random.RandomState(1).randint(0, config["vocab_size"], (ROWS, LENGTH))
    prompt = torch.as_tensor(tokens[:, :PROMPT])
    with torch.no_grad():
      logits = model(torch.as_tensor(tokens)).logits.numpy()
      replies = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
      )
    golden = checkpoints.Golden(config, shapes, tokens, logits, replies[:, PROMPT:].numpy())
    path = golden.save(folder / f"{name}.npz", made_with=f"transformers {transformers.__version__}")
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB, logits of std {logits.std():.2f}")


if __name__ == "__main__":
  entry_point.run(main)
