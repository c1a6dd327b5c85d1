"""Two recipes of tinker_cookbook, unmodified: supervised learning of chats, then RL of arithmetic.

    TINKER_BASE_URL=... TINKER_API_KEY=... python tinker_recipes.py RANK

`recipes/chat_sl` learns sums from a file of conversations, and `recipes/math_rl` goes on from the
state that it saved: it samples groups of answers, trains on them with importance sampling, and
compares the log-probabilities of sampling and training. Prints a line of JSON: the loss of the
first and the last supervised step, rewards of the RL steps, and the largest of the differences.
"""

import asyncio
import json
import pathlib
import random
import sys
import tempfile

import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.recipes.chat_sl import train as chat_sl
from tinker_cookbook.recipes.math_rl import train as math_rl

STEPS, SUMS, RL_STEPS = 12, 16, 3
RENDERER = "role_colon"

rank = int(sys.argv[1])
service = tinker.ServiceClient()
model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
# The recipes ask Hugging Face for the tokenizer of a model; this one's is on the server's disk.
tokenizer = (
  service.create_lora_training_client(base_model=model, rank=rank).result().get_tokenizer()
)
tokenizer_utils.register_tokenizer(model, lambda: tokenizer)


def read(path):
  """The records of a file of JSON lines."""
  return [json.loads(line) for line in path.read_text().splitlines()]


with tempfile.TemporaryDirectory() as folder:
  place, draw = pathlib.Path(folder), random.Random(0)
  with (place / "sums.jsonl").open("w") as lines:
    for _ in range(STEPS * SUMS):
      x, y = draw.randint(0, 9), draw.randint(0, 9)
      asked = {"role": "user", "content": f"What is {x} + {y}?"}
      messages = [asked, {"role": "assistant", "content": str(x + y)}]
      print(json.dumps({"messages": messages}), file=lines)
  shared = {
    "model_name": model,
    "renderer_name": RENDERER,
    "lora_rank": rank,
    "eval_every": 0,
    "save_every": 0,
    "behavior_if_log_dir_exists": "delete",
  }
  chat_sl.cli_main(
    chat_sl.CLIConfig(
      dataset=str(place / "sums.jsonl"),
      learning_rate=5e-3,
      batch_size=SUMS,
      max_length=64,
      log_path=str(place / "sl"),
      **shared,
    )
  )
  losses = [row["train_mean_nll"] for row in read(place / "sl" / "metrics.jsonl")]
  state = read(place / "sl" / "checkpoints.jsonl")[-1]["state_path"]
  asyncio.run(
    math_rl.cli_main(
      math_rl.CLIConfig(
        env="arithmetic",
        learning_rate=1e-3,
        group_size=8,
        groups_per_batch=4,
        max_tokens=8,
        max_steps=RL_STEPS,
        load_checkpoint_path=state,
        log_path=str(place / "rl"),
        **shared,
      )
    )
  )
  rows = read(place / "rl" / "metrics.jsonl")
found = {
  "first": losses[0],
  "last": losses[-1],
  "rewards": [row["env/all/reward/total"] for row in rows],
  "kl": max(abs(row["optim/kl_sample_train_v2"]) for row in rows),
}
print(json.dumps(found))
