"""Imported checkpoints compute what `transformers` computes; skipped where it is not installed."""

import typing

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.hf import convert, quantised
from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from tests.hf import checkpoints

torch = pytest.importorskip("torch", reason="pip install 'jaxrl_agents[transformers]'")
hf = pytest.importorskip("transformers", reason="pip install 'jaxrl_agents[transformers]'")

ROWS, LENGTH, NEW = 2, 21, 12


class Pair(typing.NamedTuple):
  model: typing.Any
  folder: typing.Any
  weights: typing.Any
  cfg: typing.Any
  params: typing.Any


@pytest.fixture(scope="module", params=list(checkpoints.CONFIGS))
def pair(request, tmp_path_factory):
  """A random float32 model, its checkpoint as save_pretrained writes it, and what we read of it."""
  folder = tmp_path_factory.mktemp(request.param)
  config = dict(checkpoints.CONFIGS[request.param])
  if "num_nextn_predict_layers" in config:
    config["num_nextn_predict_layers"] = 0  # save_pretrained leaves prediction modules out
  if config["model_type"] == "kimi_k2":
    config["model_type"] = "deepseek_v3"  # the same network; Kimi brings its own code
  config = hf.AutoConfig.for_model(**config)
  model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
  randomise(model)
  model.save_pretrained(folder)
  weights = folder / "ours" / weight_files.WEIGHTS
  cfg = convert.import_weights(folder, weights)
  params = params_lib.unstack(weight_files.load(str(folder / "ours"), cfg))
  return Pair(model, folder, weights, cfg, params)


def randomise(model):
  """Every weight, norm, bias and sink away from its initial value; scores and logits around 1."""
  generator = torch.Generator().manual_seed(0)
  tensors = dict(model.named_parameters())
  tensors |= {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
  with torch.no_grad():
    for name, tensor in tensors.items():
      draw = torch.randn(tensor.shape, generator=generator)
      if "norm" in name:
        tensor.copy_(1 + 0.2 * draw)
      elif tensor.ndim == 1 or name.endswith("_bias"):
        tensor.copy_(0.3 * draw)
      else:
        tensor.copy_(draw * (1.0 if "embed" in name else 1.4 * tensor.shape[-1] ** -0.5))


def ids(cfg):
  return np.random.default_rng(1).integers(0, cfg.vocab_size, (ROWS, LENGTH))


def theirs(model, tokens):
  with torch.no_grad():
    return model(torch.as_tensor(tokens)).logits.numpy()


def test_a_full_pass_has_the_same_logits(pair):
  tokens = ids(pair.cfg)
  ours = checkpoints.logits(pair.params, tokens, pair.cfg)
  expected = theirs(pair.model, tokens)
  assert 0.3 < expected.std() < 30
  np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_prefill_and_single_steps_have_the_same_logits(pair):
  tokens = ids(pair.cfg)
  feed = checkpoints.paged(pair.params, pair.cfg, ROWS)
  parts = [tokens[:, :13], *(tokens[:, i : i + 1] for i in range(13, LENGTH))]
  ours = np.concatenate([feed(part) for part in parts], axis=1)
  np.testing.assert_allclose(ours, theirs(pair.model, tokens), atol=1e-4)


def test_greedy_replies_agree_token_for_token(pair):
  prompt = ids(pair.cfg)[:, :9]
  ours = checkpoints.greedy(pair.params, prompt, pair.cfg, NEW)
  with torch.no_grad():
    expected = pair.model.generate(
      torch.as_tensor(prompt),
      attention_mask=torch.ones(prompt.shape, dtype=torch.long),
      max_new_tokens=NEW,
      do_sample=False,
      eos_token_id=None,
      pad_token_id=0,
    )
  np.testing.assert_array_equal(ours, expected.numpy()[:, prompt.shape[1] :])


def test_an_exported_checkpoint_is_the_model_that_came_in(pair, tmp_path):
  convert.export_weights(pair.weights, pair.folder, tmp_path, shard_bytes=50_000)
  again, report = hf.AutoModelForCausalLM.from_pretrained(
    tmp_path, attn_implementation="eager", output_loading_info=True
  )
  assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  before, after = pair.model.state_dict(), again.state_dict()
  assert before.keys() == after.keys()
  for name, tensor in before.items():
    assert torch.equal(tensor, after[name]), name
  tokens = ids(pair.cfg)
  np.testing.assert_array_equal(theirs(again.eval(), tokens), theirs(pair.model, tokens))


def test_the_prediction_module_computes_what_theirs_does(tmp_path):
  config = hf.AutoConfig.for_model(**checkpoints.DEEPSEEK)
  model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
  randomise(model)
  module = pytest.importorskip("transformers.modeling_layers").MtpModel(model, 1).eval()
  randomise(module.layers)
  model.save_pretrained(tmp_path)
  checkpoints.write_file(tmp_path / "mtp.safetensors", on_disk(module, model))
  cfg = convert.import_weights(tmp_path, tmp_path / "ours" / weight_files.WEIGHTS)
  params = params_lib.unstack(weight_files.load(str(tmp_path / "ours"), cfg))
  tokens = ids(cfg)
  trunk = checkpoints.forward(params, jnp.asarray(tokens), cfg).hidden
  next_tokens = mtp.shift_left(jnp.asarray(tokens), 1)
  ours = mtp.mtp(params, trunk, next_tokens, cfg)[0]
  with torch.no_grad():
    hidden = model.model(torch.as_tensor(tokens)).last_hidden_state
    after = torch.as_tensor(np.asarray(next_tokens, np.int64))
    places = torch.arange(1, LENGTH + 1)[None]
    expected = module.forward_layer(0, hidden, places, None, input_ids=after)
    logits = module._project_to_logits(expected)
  np.testing.assert_allclose(ours, expected, atol=1e-4)
  np.testing.assert_allclose(transformer.logits(params, ours, cfg), logits, atol=1e-4)


def test_four_bit_weights_are_decoded_as_theirs():
  module = pytest.importorskip("transformers.integrations.mxfp4")
  rng = np.random.default_rng(0)
  blocks = rng.integers(0, 256, (3, 5, 2, 16)).astype(np.uint8)
  scales = rng.integers(100, 150, (3, 5, 2)).astype(np.uint8)
  expected = module.convert_moe_packed_tensors(torch.as_tensor(blocks), torch.as_tensor(scales))
  ours = quantised.from_mxfp4(blocks, scales)
  np.testing.assert_array_equal(ours.astype(np.float32), expected.float().numpy())


def on_disk(module, model):
  """Tensors of a prediction module under the names of DeepSeek's checkpoint."""
  layer = model.config.num_hidden_layers
  prefix = f"model.layers.{layer}."
  arrays = {
    f"{prefix}embed_tokens.weight": model.get_input_embeddings().weight,
    f"{prefix}shared_head.head.weight": model.lm_head.weight,
  }
  for name, tensor in module.layers[0].state_dict().items():
    name = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
    if not name.startswith("mlp.experts"):
      arrays[prefix + name] = tensor
      continue
    parts = {"gate_up_proj": ("gate_proj", "up_proj")}.get(name.rpartition(".")[2], ("down_proj",))
    for expert, matrices in enumerate(tensor):
      for part, matrix in zip(parts, matrices.chunk(len(parts)), strict=True):
        arrays[f"{prefix}mlp.experts.{expert}.{part}.weight"] = matrix
  return {name: tensor.detach().numpy() for name, tensor in arrays.items()}
