"""Imported checkpoints compute what `transformers` computed for them; it need not be installed."""

import pathlib

import numpy as np
import pytest

from jaxrl_agents.hf import convert
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from tests.hf import checkpoints

FILES = sorted((pathlib.Path(__file__).parent / "golden").glob("*.npz"))
CLOSE = 1e-4
"""float32 sums in another order: logits of standard deviation 1.5 differ by less than 1e-5."""


def imported(folder, golden, change=lambda weights: None):
  """(params, sizes) of the golden model, read as a checkpoint; `change` may damage its weights."""
  checkpoints.write_config(folder, golden.config | {"dtype": "float32"})
  weights = {n: checkpoints.golden_weight(n, shape) for n, shape in golden.shapes.items()}
  change(weights)
  checkpoints.write_file(folder / "model.safetensors", weights)
  cfg = convert.import_weights(folder, folder / "ours" / weight_files.WEIGHTS)
  return params_lib.unstack(weight_files.load(str(folder / "ours"), cfg)), cfg


def test_there_is_a_golden_file_of_every_family():
  assert [file.stem for file in FILES] == sorted(checkpoints.CONFIGS)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_logits_and_greedy_replies_are_those_of_transformers(file, tmp_path):
  golden = checkpoints.Golden.load(file)
  assert golden.config["model_type"] == file.stem and golden.logits.std() > 0.3
  params, cfg = imported(tmp_path, golden)
  ours = checkpoints.logits(params, golden.tokens, cfg)
  np.testing.assert_allclose(ours, golden.logits, atol=CLOSE)
  count = golden.replies.shape[1]
  prompt = golden.tokens[:, : golden.tokens.shape[1] - count]
  np.testing.assert_array_equal(checkpoints.greedy(params, prompt, cfg, count), golden.replies)


def test_two_swapped_experts_are_noticed(tmp_path):
  golden = checkpoints.Golden.load(next(f for f in FILES if f.stem == "qwen3_moe"))

  def swap(weights):
    names = [name for name in weights if "layers.1.mlp.experts.0." in name]
    assert len(names) == 3
    for name in names:
      other = name.replace("experts.0.", "experts.1.")
      weights[name], weights[other] = weights[other], weights[name]

  params, cfg = imported(tmp_path, golden, swap)
  ours = checkpoints.logits(params, golden.tokens, cfg)
  assert np.abs(np.asarray(ours) - golden.logits).max() > 100 * CLOSE
