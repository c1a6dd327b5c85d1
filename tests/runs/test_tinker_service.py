"""Tinker's API over HTTP, with a tiny policy: trains, samples, saves and loads."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import threading
import urllib.parse

import jax
import numpy as np
import pytest

from jaxrl_agents.config import SamplerConfig
from jaxrl_agents.gateway.tinker import messages, wire
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import tinker_service
from tests.runs.small_run import CFG, CONFIG

DENSE = dataclasses.replace(
  CFG, num_dense_layers=1, dense_ffw_dim=8, num_experts=0, experts_per_token=0, expert_ffw_dim=0
)
CONFIG = dataclasses.replace(
  CONFIG,
  policy=dataclasses.replace(CONFIG.policy, model=DENSE),
  sampler=SamplerConfig(slots=4, page_tokens=16, num_pages=40, prefill_tokens=32),
)
TOKENS = list(range(40, 52))


class Client:
  """Speaks with the server as the client library does."""

  def __init__(self, url):
    self.address = urllib.parse.urlsplit(url).netloc
    self.seq = 0

  def ask(self, path, body=None, *, method="POST", key="tml-key", kind="application/json"):
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    connection = http.client.HTTPConnection(self.address, timeout=60)
    with contextlib.closing(connection):
      head = {"X-API-Key": key, "Content-Type": kind}
      connection.request(method, f"/api/v1/{path}", None if method == "GET" else raw, head)
      reply = connection.getresponse()
      content = reply.read()
      is_json = "json" in reply.headers["content-type"]
      return reply.status, json.loads(content) if is_json else content

  def result(self, path, body=None):
    """The result of a request that takes time."""
    status, promise = self.ask(path, body)
    assert status == 200, promise
    return self.wait(promise["request_id"])

  def wait(self, request_id):
    while True:
      status, result = self.ask("retrieve_future", {"request_id": request_id})
      if status != 408:
        assert status == 200, result
        return result

  def model(self, rank=0):
    _, session = self.ask("create_session", {"tags": [], "sdk_version": "0"})
    self.session, self.seq = session["session_id"], 0
    body = {"session_id": self.session, "model_seq_id": 0, "base_model": "small"}
    self.name = self.result("create_model", body | {"lora_config": {"rank": rank}})["model_id"]
    return self.name

  def next(self, **body):
    self.seq += 1
    return {"model_id": self.name, "seq_id": self.seq} | body

  def pass_(self, data, loss="cross_entropy", *, seq=None, forward_only=False, **options):
    """(metrics, log-probabilities) of a forward_backward, or its error; a promise with `seq`."""
    if seq is None:
      self.seq += 1
    raw = request(self.name, seq or self.seq, data, loss, forward_only, options)
    status, promise = self.ask("forward_backward", raw, kind="application/x-protobuf")
    assert status == 200, promise
    if seq is not None:
      return promise["request_id"]
    result = self.wait(promise["request_id"])
    return result if isinstance(result, dict) else output(result)

  def step(self, **adam):
    return self.result("optim_step", self.next(adam_params=adam))

  def sampler(self, **body):
    self.samplers = getattr(self, "samplers", 0) + 1
    asked = self.next(sampling_session_seq_id=self.samplers, **body)
    return self.result("save_weights_for_sampler", asked)["sampling_session_id"]

  def sample(self, session, seq_id, *, prompt=TOKENS[:2], **body):
    body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}}
    asked = {"sampling_session_id": session, "seq_id": seq_id} | body
    return sampled(self.result("asample", asked))


def request(model, seq, data, loss, forward_only, options):
  """The bytes of a ForwardBackwardRequest; `data`: pairs of tokens and inputs."""
  raw = wire.write(1, model) + wire.write(2, seq) + wire.write(4, loss)
  for tokens, inputs in data:
    text = wire.write(1, wire.write(1, np.asarray(tokens, "<i4").tobytes()))
    datum = wire.write(1, text)
    for name, values in inputs.items():
      ids = name == "target_tokens"
      dense = np.asarray(values, "<i8" if ids else "<f4").tobytes()
      tensor = wire.write(1, dense) + wire.write(3, 2 if ids else 1)
      datum += wire.write(2, wire.write(1, name) + wire.write(2, tensor))
    raw += wire.write(3, datum)
  for name, value in options.items():
    raw += wire.write(5, wire.write(1, name) + wire.write(2, float(value)))
  return raw + wire.write(6, int(forward_only))


def output(raw):
  """(metrics, log-probabilities of each sequence) of a ForwardBackwardOutput."""
  found = {}
  metrics = {}
  for number, value in wire.fields(raw):
    if number == 2:
      entry = dict(wire.fields(dict(wire.fields(value))[2]))
      assert entry[1] == b"logprobs"
      tensor = dict(wire.fields(entry[2]))
      flat, offsets = np.frombuffer(tensor[1], "<f4"), np.frombuffer(tensor[2], "<i8") // 4
      found = [flat[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    elif number == 3:
      entry = dict(wire.fields(value))
      metrics[entry[1].decode()] = wire.double(entry[2])
  return metrics, found


def sampled(raw):
  """(samples as (tokens, log-probabilities, stop reason), log-probabilities of the prompt)."""
  assert isinstance(raw, bytes), raw
  samples, prompt = [], None
  for number, value in wire.fields(raw):
    if number == 1:
      fields = dict(wire.fields(value))
      tokens = np.frombuffer(fields[2], "<i4").tolist()
      samples.append((tokens, np.frombuffer(fields[3], "<f4"), fields[1]))
    else:
      prompt = np.frombuffer(value, "<f4")
  return samples, prompt


def entropy(tokens=TOKENS, weights=None):
  """A sequence of cross-entropy."""
  weights = np.ones(len(tokens) - 1) if weights is None else weights
  return tokens[:-1], {"target_tokens": tokens[1:], "weights": weights}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
  base = lambda: params_lib.init(DENSE, jax.random.key(0))
  started, loop, folder = threading.Event(), asyncio.new_event_loop(), tmp_path_factory.mktemp("m")
  found = {}

  async def serve():
    async with tinker_service.running(CONFIG, base, str(folder), key="key") as (server, _):
      found["url"], found["stop"] = server.url, asyncio.Event()
      started.set()
      await found["stop"].wait()

  thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
  thread.start()
  assert started.wait(240), "the server did not start"
  yield Client(found["url"])
  loop.call_soon_threadsafe(found["stop"].set)
  thread.join(60)
  loop.close()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_text_is_learned_and_sampled_by_heart(client, rank):
  client.model(rank)
  losses = []
  for step in range(25):
    metrics, (logprobs,) = client.pass_([entropy()])
    np.testing.assert_allclose(metrics["loss:sum"], -logprobs.sum(), rtol=1e-5)
    losses.append(metrics["loss:sum"])
    rate = 0.1 / (1 + step / 20)  # another one each step
    assert client.step(learning_rate=rate, eps=1e-8)["metrics"]["applied"] == 1
  assert losses[-1] < (0.9 if rank else 0.2) * losses[0]
  session = client.sampler()
  params = {"max_tokens": 10, "temperature": 0.0, "stop": []}
  if rank == 0:
    (((tokens, _, reason),), _) = client.sample(session, 0, sampling_params=params)
    assert tokens == TOKENS[2:] and reason == messages.LENGTH
  (_, prompt) = client.sample(
    session,
    1,
    prompt=TOKENS,
    sampling_params={"max_tokens": 1},
    prompt_logprobs=True,
  )
  _, (logprobs,) = client.pass_([entropy()], forward_only=True)
  assert np.isnan(prompt[0])
  np.testing.assert_allclose(prompt[1:], logprobs, atol=1e-4)


def test_parts_that_come_in_the_wrong_order_train_as_the_whole(client):
  data = [entropy(TOKENS[i : i + 6]) for i in range(4)]
  found = []
  for parts in ([data], [data[:1], data[1:2], data[2:]]):
    client.model()
    first, client.seq = client.seq + 1, client.seq + len(parts)
    after = client.next(adam_params={"learning_rate": 0.01, "eps": 1e-3})
    ids = [client.ask("optim_step", after)[1]["request_id"]]
    for i in reversed(range(len(parts))):
      ids.append(client.pass_(parts[i], seq=first + i))
    again = client.pass_(parts[0], seq=first)  # a repetition
    assert again == ids[-1]
    assert "metrics" in client.wait(ids[0])
    metrics, logprobs = client.pass_(data, forward_only=True)
    found.append(np.concatenate(logprobs))
    np.testing.assert_allclose(metrics["loss:sum"], -found[-1].sum(), rtol=1e-5)
  np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_policy_losses_are_sums_by_their_formulas(client):
  client.model()
  tokens, targets = TOKENS[:3], TOKENS[1:4]
  _, (logprobs,) = client.pass_([entropy(TOKENS[:4])], forward_only=True)
  behaviour = logprobs - np.float32([0.5, -0.5, 0.0])  # ratios e^0.5, e^-0.5, 1
  advantages = np.float32([1.0, -2.0, 3.0])
  ratio = np.exp(np.float64([0.5, -0.5, 0.0]))
  inputs = {"target_tokens": targets, "logprobs": behaviour, "advantages": advantages}
  clipped = np.clip(ratio, 0.8, 1.2)
  expected = {
    "importance_sampling": -(ratio * advantages).sum(),
    "ppo": -np.minimum(ratio * advantages, clipped * advantages).sum(),
    "cispo": -(clipped * advantages * logprobs).sum(),
    "dro": -(advantages * logprobs - 0.025 * np.square([0.5, -0.5, 0.0])).sum(),
  }
  for loss, value in expected.items():
    for forward_only in (True, loss != "importance_sampling"):
      metrics, _ = client.pass_([(tokens, inputs)], loss, forward_only=forward_only)
      np.testing.assert_allclose(metrics["loss:sum"], value, rtol=1e-4)
  metrics, _ = client.pass_([(tokens, inputs)], "ppo", forward_only=True, clip_high_threshold=1.7)
  wide = np.clip(ratio, 0.8, 1.7)
  value = -np.minimum(ratio * advantages, wide * advantages).sum()
  np.testing.assert_allclose(metrics["loss:sum"], value, rtol=1e-4)
  metrics, _ = client.pass_([(tokens, inputs)], "dro", forward_only=True, beta=4.0)
  value = -(advantages * logprobs - 2.0 * np.square([0.5, -0.5, 0.0])).sum()
  np.testing.assert_allclose(metrics["loss:sum"], value, rtol=1e-4)
  wrong = client.pass_([(tokens, inputs)], "dro", forward_only=True, tau=1.0)
  assert "dro has no option 'tau'; its options: beta" in wrong["error"]


def test_a_failed_part_fails_the_step_and_says_why(client):
  client.model()
  client.pass_([entropy()])
  wrong = client.pass_([(TOKENS[:3], {"target_tokens": TOKENS[1:3]})])
  assert wrong["category"] == "user" and "target_tokens has shape [2]" in wrong["error"]
  assert "gradients are missing" in client.step()["error"]
  assert "call forward_backward first" in client.step()["error"]
  assert "'gspo' is not supported" in client.pass_([entropy()], "gspo")["error"]
  assert "'mask'" in client.pass_([(TOKENS[:1], {"mask": [1.0]})])["error"]
  old = client.name
  client.model()
  client.name, client.seq = old, 10
  client.seq = 6
  assert "has taken its place" in client.step()["error"]


def test_snapshots_stay_and_weights_in_flight_move(client):
  client.model()
  params = {"max_tokens": 4, "seed": 3, "stop": []}
  frozen, moving = client.sampler(), client.sampler(kind="inflight")
  draw = lambda session, seq: client.sample(session, seq, num_samples=2, sampling_params=params)
  before = draw(frozen, 0)[0]
  assert [s[0] for s in before] == [s[0] for s in draw(moving, 0)[0]]
  assert before[0][0] != before[1][0]  # one seed, several samples
  client.pass_([entropy()])
  client.step(learning_rate=0.5)
  client.sampler(kind="inflight")
  assert [s[0] for s in draw(frozen, 1)[0]] == [s[0] for s in before]
  assert [s[0] for s in draw(moving, 1)[0]] != [s[0] for s in before]


def test_weights_saved_under_a_used_name_are_new_weights_and_the_old_ones_are_missed(client):
  client.model()
  params = {"max_tokens": 4, "seed": 3, "stop": []}
  sessions = []
  for number in range(2):
    path = client.result("save_weights_for_sampler", client.next(path="latest"))["path"]
    body = {"session_id": client.session, "model_path": path}
    made = client.ask("create_sampling_session", body | {"sampling_session_seq_id": 50 + number})[1]
    sessions.append(made["sampling_session_id"])
    if not number:
      before, _ = client.sample(sessions[0], 0, sampling_params=params)
      client.pass_([entropy()])
      client.step(learning_rate=0.5)
  after, _ = client.sample(sessions[1], 0, sampling_params=params)
  assert [s[0] for s in after] != [s[0] for s in before]
  prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:2]}]}
  body = {"sampling_session_id": sessions[0], "seq_id": 1, "prompt": prompt}
  assert "create a sampling session" in client.result("asample", body)["error"]


def test_log_probabilities_of_tempered_samples_are_raw(client):
  client.model()
  session = client.sampler()
  params = {"max_tokens": 5, "temperature": 0.6, "top_p": 0.9, "stop": []}
  (((tokens, logprobs, _),), _) = client.sample(session, 0, sampling_params=params)
  _, (whole,) = client.pass_([entropy(TOKENS[:2] + tokens)], forward_only=True)
  np.testing.assert_allclose(logprobs, whole[1:], atol=1e-4)


def test_a_saved_state_goes_on_as_if_it_had_not_stopped(client):
  name = client.model(rank=2)
  for _ in range(2):
    client.pass_([entropy()])
    client.step(learning_rate=0.05)
  path = client.result("save_weights", client.next(path="two"))["path"]
  assert path == f"tinker://{name}/weights/two"
  assert "exists" in client.result("save_weights", client.next(path="two"))["error"]
  client.pass_([entropy()])
  client.step(learning_rate=0.05)
  expected, _ = client.pass_([entropy()], forward_only=True)
  body = {"session_id": client.session, "model_seq_id": 1, "path": path, "optimizer": True}
  client.name, client.seq = client.result("load_weights", body)["model_id"], 0
  assert client.name == f"{client.session}:train:1"
  client.pass_([entropy()])
  client.step(learning_rate=0.05)
  found, _ = client.pass_([entropy()], forward_only=True)
  assert found["loss:sum"] == expected["loss:sum"]
  named = client.result("save_weights_for_sampler", client.next(path="s"))["path"]
  body = {"session_id": client.session, "sampling_session_seq_id": 99, "model_path": named}
  status, made = client.ask("create_sampling_session", body)
  assert status == 200
  (_, scores) = client.sample(
    made["sampling_session_id"],
    0,
    prompt=TOKENS,
    sampling_params={"max_tokens": 1},
    prompt_logprobs=True,
    prompt_logprobs_last_n=3,
  )
  assert np.isnan(scores[:-3]).all() and not np.isnan(scores[-3:]).any()
  listed = client.ask(f"training_runs/{name}/checkpoints", method="GET")[1]["checkpoints"]
  assert [each["tinker_path"] for each in listed] == [path]
  assert client.ask(f"training_runs/{name}/checkpoints/weights/two", method="DELETE")[0] == 200
  assert client.ask("weights_info", {"tinker_path": path})[0] == 404


def test_what_is_not_supported_is_refused_by_name(client):
  client.model()
  session = client.sampler()
  prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
  body = {"sampling_session_id": session, "seq_id": 0, "prompt": prompt}
  for more, word in (
    ({"sampling_params": {"top_k": 5}}, "top_k"),
    ({"topk_prompt_logprobs": 3}, "topk_prompt_logprobs"),
    ({"prompt": {"chunks": [{"type": "image"}]}}, "image"),
    ({"sampling_session_id": "x"}, "no sampling session"),
  ):
    status, reply = client.ask("asample", body | more)
    assert status in (400, 404) and word in reply["detail"]
  asked = {"session_id": client.session, "model_seq_id": 5, "base_model": "other"}
  assert "this server has 'small' alone" in client.ask("create_model", asked)[1]["detail"]
  assert client.ask("create_session", {}, key="tml-wrong")[0] == 401
  assert client.ask("forward_backward", b"\xff", kind="application/x-protobuf")[0] == 400
  assert client.ask("healthz", method="GET") == (200, {"status": "ok"})
  for path in ("get_server_capabilities", "training_runs", "checkpoints", "sessions"):
    assert client.ask(path, method="GET")[0] == 200
  assert client.ask(f"samplers/{session}", method="GET")[1]["base_model"] == "small"
  assert client.ask("get_info", {"model_id": client.name})[1]["model_data"]["tokenizer_id"]
