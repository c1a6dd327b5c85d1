"""A bandit with Tinker's client library: importance sampling on its own samples.

    TINKER_BASE_URL=... TINKER_API_KEY=... python tinker_bandit.py RANK

The reward of a sample is the share of its ids that are even. Prints a line of JSON.
"""

import json
import sys

import tinker
from tinker import types

STEPS, SAMPLES, TOKENS = 20, 16, 8

rank = int(sys.argv[1])
service = tinker.ServiceClient()
model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
trained = service.create_lora_training_client(base_model=model, rank=rank, seed=1).result()
prompt = [5, 6, 7, 8]
asked = types.SamplingParams(max_tokens=TOKENS, stop=[])
rewards = []
for _ in range(STEPS):
  client = trained.save_weights_and_get_sampling_client()
  client = client.result() if hasattr(client, "result") else client
  drawn = client.sample(types.ModelInput.from_ints(prompt), SAMPLES, asked).result().sequences
  scores = [sum(token % 2 == 0 for token in each.tokens) / TOKENS for each in drawn]
  mean = sum(scores) / SAMPLES
  rewards.append(mean)
  data = []
  for each, score in zip(drawn, scores, strict=True):
    before = [0.0] * (len(prompt) - 1)
    data.append(
      types.Datum(
        model_input=types.ModelInput.from_ints([*prompt, *each.tokens][:-1]),
        loss_fn_inputs={
          "target_tokens": [*prompt, *each.tokens][1:],
          "logprobs": before + list(each.logprobs),
          "advantages": before + [score - mean] * TOKENS,
        },
      )
    )
  passed = trained.forward_backward(data, "importance_sampling")
  stepped = trained.optim_step(types.AdamParams(learning_rate=5e-2 if rank else 3e-3))
  passed.result(), stepped.result()
first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
print(json.dumps({"first": first, "last": last}))
