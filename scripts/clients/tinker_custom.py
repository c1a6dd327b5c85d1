"""Losses of one's own with Tinker's client library, which needs torch for them.

    TINKER_BASE_URL=... TINKER_API_KEY=... python tinker_custom.py RANK

The library asks for log-probabilities, differentiates a loss of them, and sends its negative
gradient back as weights of a cross-entropy. First the sum of negative log-probabilities, which
must train as the server's own cross-entropy does; then one that joins two sequences: the
log-sigmoid of the difference of their log-probabilities. Prints a line of JSON.
"""

import json
import sys

import tinker
import torch
from tinker import types

CHOSEN, REJECTED = "the sky is blue", "the sky is green"
SAME_STEPS, STEPS, BETA = 4, 12, 0.1

rank = int(sys.argv[1])
rate = types.AdamParams(learning_rate=5e-3 if rank else 1e-3)
service = tinker.ServiceClient()
model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name


def fresh():
  """A new model with the same first values."""
  return service.create_lora_training_client(base_model=model, rank=rank, seed=1).result()


def datum(tokenizer, text):
  """A sequence, its first token without a weight."""
  ids = tokenizer.encode(text, add_special_tokens=False)
  return types.Datum(
    model_input=types.ModelInput.from_ints(ids[:-1]),
    loss_fn_inputs={"target_tokens": ids[1:], "weights": [0.0] + [1.0] * (len(ids) - 2)},
  )


def summed(data, logprobs):
  """-sum of weight times log-probability."""
  weights = [torch.tensor(each.loss_fn_inputs["weights"].data) for each in data]
  total = -sum((w * lp).sum() for w, lp in zip(weights, logprobs, strict=True))
  return total, {"sequences": float(len(data))}


def preferring(data, logprobs):
  """-log sigmoid(BETA (log p(chosen) - log p(rejected)))."""
  margin = logprobs[0].sum() - logprobs[1].sum()
  return -torch.nn.functional.logsigmoid(BETA * margin), {"margin": float(margin.detach())}


def losses(trained, steps, ask):
  """The loss before each step."""
  found = []
  for _ in range(steps):
    passed = ask(trained)
    stepped = trained.optim_step(rate)
    found.append(passed.result().metrics["loss:sum"])
    stepped.result()
  return found


first = fresh()
tokenizer = first.get_tokenizer()
pair = [datum(tokenizer, CHOSEN), datum(tokenizer, REJECTED)]
theirs = losses(first, SAME_STEPS, lambda t: t.forward_backward(pair, "cross_entropy"))
ours = losses(fresh(), SAME_STEPS, lambda t: t.forward_backward_custom(pair, summed))
joined = losses(fresh(), STEPS, lambda t: t.forward_backward_custom(pair, preferring))
gap = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
print(json.dumps({"first": joined[0], "last": joined[-1], "same_loss_gap": gap}))
