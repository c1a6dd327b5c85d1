"""A recipe of tinker_cookbook that learns: `preference.shorter`, unmodified, three times.

Of two replies to one question, the recipe rewards the shorter one. Run by scripts/try_tinker.py
with the rank of the adapters. Figures are mean lengths in characters of replies before and after,
and the least of the lower 95 % bounds of their differences.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.recipes.preference.shorter import env, train

RUNS, STEPS, SAMPLES, TOKENS = 3, 12, 256, 32
RENDERER = "role_colon"

rank = int(sys.argv[1])
service = tinker.ServiceClient()
model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name


def started():
  """The weights that a run starts from."""
  return service.create_lora_training_client(base_model=model, rank=rank).result()


# The recipe asks Hugging Face for the tokenizer of a model; this one's is on the server's disk.
tokenizer = started().get_tokenizer()
tokenizer_utils.register_tokenizer(model, lambda: tokenizer)
renderer = renderers.get_renderer(RENDERER, tokenizer)


def lengths(client):
  """Characters of replies to the question of the recipe, [SAMPLES]."""
  prompt = renderer.build_generation_prompt(env.CONVO_PREFIX)
  limits = tinker.SamplingParams(max_tokens=TOKENS, stop=renderer.get_stop_sequences())
  replies = client.save_weights_and_get_sampling_client().sample(prompt, SAMPLES, limits)
  texts = [renderer.parse_response(each.tokens)[0] for each in replies.result().sequences]
  return np.array([len(text["content"]) for text in texts])


def run(number):
  """Lengths before and after one run of the recipe."""
  before = lengths(started())
  with tempfile.TemporaryDirectory() as folder:
    train.cli_main(
      train.CLIConfig(
        model_name=model,
        renderer_name=RENDERER,
        batch_size=4,
        group_size=8,
        learning_rate=1e-3,
        max_tokens=TOKENS,
        eval_every=0,
        max_steps=STEPS,
        log_path=folder,
        behavior_if_log_dir_exists="delete",
      )
    )
    rows = (pathlib.Path(folder) / "checkpoints.jsonl").read_text().splitlines()
    state = json.loads(rows[-1])["state_path"]
    after = lengths(service.create_training_client_from_state(state))
  print(f"run {number}: {before.mean():.1f} to {after.mean():.1f}", file=sys.stderr)
  return before, after


runs = [run(number) for number in range(RUNS)]
error = lambda a, b: np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / SAMPLES)
found = {
  "first": float(np.mean([before for before, _ in runs])),
  "last": float(np.mean([after for _, after in runs])),
  "lower95": float(min(a.mean() - b.mean() - 1.96 * error(a, b) for a, b in runs)),
}
print(json.dumps(found))
