"""Learns a text by heart with Tinker's client library: cross-entropy, optimizer steps, samples.

    TINKER_BASE_URL=... TINKER_API_KEY=... python tinker_copy.py RANK

RANK 0 trains all parameters. Prints a line of JSON.
"""

import json
import sys

import tinker
from tinker import types

TEXT = "the quick brown fox jumps over the lazy dog"
STEPS = {0: 20}  # of adapters 60

rank = int(sys.argv[1])
service = tinker.ServiceClient()
model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
trained = service.create_lora_training_client(base_model=model, rank=rank, seed=1).result()
tokenizer = trained.get_tokenizer()
prompt = tokenizer.encode("say it: ", add_special_tokens=False)
ids = prompt + tokenizer.encode(TEXT, add_special_tokens=False)
weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(ids) - len(prompt))
datum = types.Datum(
  model_input=types.ModelInput.from_ints(ids[:-1]),
  loss_fn_inputs={"target_tokens": ids[1:], "weights": weights},
)
asked = types.SamplingParams(max_tokens=len(ids) - len(prompt), temperature=0.0, stop=[])
start = types.ModelInput.from_ints(prompt)
losses = []
for _ in range(STEPS.get(rank, 60)):
  passed = trained.forward_backward([datum], "cross_entropy")
  stepped = trained.optim_step(types.AdamParams(learning_rate=5e-3 if rank else 3e-3))
  losses.append(passed.result().metrics["loss:sum"])
  stepped.result()
saved = trained.save_weights_for_sampler("final").result()
clients = {
  "named": service.create_sampling_client(model_path=saved.path).result(),
  "unnamed": trained.save_weights_and_get_sampling_client(),
  "base": service.create_sampling_client(base_model=model).result(),
}
if hasattr(clients["unnamed"], "result"):
  clients["unnamed"] = clients["unnamed"].result()
said = {}
for name, client in clients.items():
  sequence = client.sample(start, 1, asked).result().sequences[0]
  said[name] = tokenizer.decode(sequence.tokens)
whole = clients["named"].compute_logprobs(types.ModelInput.from_ints(ids)).result()
forward = trained.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
gap = max(abs(a - b) for a, b in zip(whole[1:], forward, strict=True))
trained.save_state("done").result()
again = service.create_training_client_from_state_with_optimizer(
  f"tinker://{trained.model_id}/weights/done"
).result()
resumed = again.forward([datum], "cross_entropy").result().metrics["loss:sum"]
print(
  json.dumps(
    {
      "first": losses[0],
      "last": losses[-1],
      "resumed": resumed,
      "samples": said["named"] == said["unnamed"] == TEXT != said["base"],
      "said": said,
      "logprob_gap": float(gap),
    }
  )
)
