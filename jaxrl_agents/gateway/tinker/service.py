"""What Tinker's API does, behind its routes: models, sampling sessions, and their requests."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.requests import Fields, Refusal
from jaxrl_agents.gateway.tinker import messages, sampling
from jaxrl_agents.gateway.tinker.checkpoints import Checkpoints, Lora
from jaxrl_agents.gateway.tinker.futures import Futures, Ordered, Result
from jaxrl_agents.gateway.tinker.messages import ForwardBackward

BASE = ""
"""Name of the weights that models begin with."""

NOTICE = (
  "this server trains one model at a time: a new one takes the place of the one before; adapters "
  "are put on the matrices of layers alone, so train_unembed has no effect, nor has ttl_seconds"
)


@dataclasses.dataclass(frozen=True)
class Adam:
  """Numbers of one step of AdamW; `grad_clip_norm` 0 clips nothing."""

  learning_rate: float = 1e-4
  beta1: float = 0.9
  beta2: float = 0.95
  eps: float = 1e-12
  weight_decay: float = 0.0
  grad_clip_norm: float = 0.0


class Learner(Protocol):
  """The model in training. Its methods run one after another, in the order of the calls."""

  async def create(self, lora: Lora) -> None: ...

  async def restore(self, folder: pathlib.Path, lora: Lora, *, optimizer: bool) -> None: ...

  async def forward_backward(
    self, request: ForwardBackward
  ) -> tuple[Mapping[str, float], list[Any]]: ...

  async def step(self, adam: Adam) -> Mapping[str, float]: ...

  def spoil(self) -> None:
    """Gradients are missing: the next step fails, and begins anew."""

  async def save_state(self, folder: pathlib.Path) -> None: ...

  async def save_weights(self, folder: pathlib.Path) -> None: ...

  async def weights(self) -> Any:
    """A copy of the weights, for `Sampler.hold` and `Sampler.publish`."""


class Sampler(sampling.Sampler, Protocol):
  """A sampler that is given weights by name; other names are folders of `save_weights`."""

  def hold(self, name: str, weights: Any) -> None:
    """Keeps weights of one sampling session, which never change."""

  async def publish(self, name: str, weights: Any) -> None:
    """Replaces the weights of a name, also in replies that are being sampled."""


@dataclasses.dataclass
class Model:
  """A model: its requests run in their order."""

  id: str
  session: str
  lora: Lora
  requests: Ordered
  user_metadata: Mapping[str, str]
  asked: datetime.datetime


@dataclasses.dataclass(frozen=True)
class Served:
  """What is served.

  Attributes:
    base_model: the only name that models and samplers may be made from.
    tokenizer: a folder, as client libraries load it.
    max_context: tokens of a prompt and its reply.
    chat: of the tokenizer.
    learner, sampler: of the policy.
    checkpoints: where models are saved.
  """

  base_model: str
  tokenizer: str
  max_context: int
  chat: Chat
  learner: Learner
  sampler: Sampler
  checkpoints: Checkpoints


class Service:
  """Sessions, models and sampling sessions, by their ids.

  Invariant: the learner holds the newest model; requests of others fail with its name.
  """

  def __init__(self, served: Served):
    self.served, self.futures = served, Futures()
    self.sessions: dict[str, Mapping[str, Any]] = {}
    self.models: dict[str, Model] = {}
    self._live = ""
    self._weights: dict[str, tuple[str, str | None]] = {}  # sampling session: weights, path

  def create_session(self, body: Fields) -> dict[str, Any]:
    """A new session."""
    session = uuid.uuid4().hex
    self.sessions[session] = {"user_metadata": _texts(body), "display_name": None}
    return {"type": "create_session", "session_id": session, "info_message": NOTICE}

  def create_model(self, body: Fields) -> dict[str, Any]:
    """Begins a model with the base weights, in the place of the one before."""
    asked = Fields(body.take("lora_config", dict, {}), "lora_config")
    lora = Lora(
      rank=asked.whole("rank", least=0),
      seed=asked.whole("seed", least=0),
      train_attn=asked.take("train_attn", bool, True),
      train_mlp=asked.take("train_mlp", bool, True),
    )
    self._check_base(body.need("base_model", str))
    _check_adam(body.take("optimizer_config", dict, {}))
    return self._begin(body, lora, lambda: self.served.learner.create(lora), "create_model")

  def load_weights(self, body: Fields) -> dict[str, Any]:
    """Loads a saved state, into a new model or as a request of one."""
    path, optimizer = body.need("path", str), body.take("optimizer", bool, False)
    session = body.take("session_id", str)
    if session is None:
      return self.in_order(body, "load_weights", lambda model: self._load(model, path, optimizer))
    saved = self.served.checkpoints.find(path, "weights")
    self._check_base(body.take("base_model", str, self.served.base_model))
    _check_adam(body.take("optimizer_config", dict, {}))
    work = lambda: self.served.learner.restore(saved.folder, saved.lora, optimizer=optimizer)
    return self._begin(body, saved.lora, work, "load_weights", session=session, path=path)

  def _begin(
    self, body: Fields, lora: Lora, work: Any, kind: str, session: str = "", path: str = ""
  ) -> dict[str, Any]:
    """Makes a model; a repetition gets the id of the same request."""
    session = session or body.need("session_id", str)
    if session not in self.sessions:
      raise Refusal(404, f"no session {session!r}; create one first", retry=False)
    name = f"{session}:train:{body.need('model_seq_id', int)}"
    request_id = f"{name}:0"
    promise = {"request_id": request_id, "model_id": name}
    if not self.futures.open(request_id, kind):
      return promise
    spoil = lambda: self.served.learner.spoil() if self._live == name else None
    requests = Ordered(self.futures, name, lost=spoil)
    self.models[name] = Model(name, session, lora, requests, _texts(body), _now())
    self._live = name

    async def make() -> Result:
      await work()
      return {"type": kind, "model_id": name} | ({"path": path} if path else {})

    self.futures.start(request_id, make)
    return promise

  def in_order(self, body: Fields, kind: str, work: Any) -> dict[str, Any]:
    """Queues `work(model)` as the request of a model with the number `seq_id`."""
    return self._queue(body.need("model_id", str), body.need("seq_id", int), kind, work)

  def _queue(self, name: str, seq_id: int, kind: str, work: Any) -> dict[str, Any]:
    model = self.model(name)
    model.asked = _now()

    async def of_live() -> Result:
      if self._live != name:
        raise ValueError(f"{name} is no longer trained: {self._live} has taken its place")
      result: Result = await work(model)
      return result

    return {"request_id": model.requests.add(seq_id, kind, of_live), "model_id": name}

  def forward_backward(self, request: ForwardBackward) -> dict[str, Any]:
    """Queues log-probabilities and gradients."""

    async def work(model: Model) -> Result:
      try:
        metrics, logprobs = await self.served.learner.forward_backward(request)
      except Exception:
        if not request.forward_only:
          self.served.learner.spoil()
        raise
      return messages.write_output(metrics, logprobs)

    return self._queue(request.model_id, request.seq_id, "forward_backward", work)

  def optim_step(self, body: Fields) -> dict[str, Any]:
    """Queues a step with the gradients since the last one."""

    async def work(model: Model) -> Result:
      if other := body.take("optimizer_params", dict):
        raise ValueError(f"optimizer {other.get('type')!r} is not supported; send adam_params")
      asked = Fields(body.take("adam_params", dict, {}), "adam_params")
      numbers = {f.name: asked.number(f.name, least=0, most=1e9) for f in dataclasses.fields(Adam)}
      given = {name: value for name, value in numbers.items() if value is not None}
      return {"metrics": dict(await self.served.learner.step(Adam(**given)))}

    return self.in_order(body, "optim_step", work)

  def save_weights(self, body: Fields) -> dict[str, Any]:
    """Queues saving the state of a model."""

    async def work(model: Model) -> Result:
      name = body.take("path", str) or f"state-{model.requests.running}"
      folder = self.served.checkpoints.begin(
        model.id, "weights", name, overwrite=body.take("overwrite", bool, False)
      )
      await self.served.learner.save_state(folder)
      path = self.served.checkpoints.complete(folder, model.lora, _texts(body))
      return {"type": "save_weights", "path": path}

    return self.in_order(body, "save_weights", work)

  def save_weights_for_sampler(self, body: Fields) -> dict[str, Any]:
    """Queues weights for sampling: named ones on the disk, else a sampling session in memory."""

    async def work(model: Model) -> Result:
      kind, served = "save_weights_for_sampler", self.served
      if name := body.take("path", str):
        folder = served.checkpoints.begin(model.id, "sampler_weights", name, overwrite=True)
        await served.learner.save_weights(folder)
        path = served.checkpoints.complete(folder, model.lora, _texts(body))
        return {"type": kind, "path": path}
      session = f"{model.session}:sample:{body.need('sampling_session_seq_id', int)}"
      weights = await served.learner.weights()
      if body.take("kind", str, "snapshot") == "inflight":
        name = f"in flight: {model.id}"
        await served.sampler.publish(name, weights)
      else:
        served.sampler.hold(session, weights)
        name = session
      self._weights[session] = (name, None)
      return {"type": kind, "sampling_session_id": session}

    return self.in_order(body, "save_weights_for_sampler", work)

  async def _load(self, model: Model, path: str, optimizer: bool) -> Result:
    saved = self.served.checkpoints.find(path, "weights")
    if dataclasses.replace(saved.lora, seed=0) != dataclasses.replace(model.lora, seed=0):
      raise ValueError(f"{path} has {saved.lora}, the model has {model.lora}; create it alike")
    await self.served.learner.restore(saved.folder, saved.lora, optimizer=optimizer)
    return {"type": "load_weights", "path": path, "model_id": model.id}

  def create_sampling_session(self, body: Fields) -> dict[str, Any]:
    """A sampling session of the base weights or of saved ones."""
    owner, path = body.need("session_id", str), body.take("model_path", str)
    session = f"{owner}:sample:{body.need('sampling_session_seq_id', int)}"
    if path:
      saved = self.served.checkpoints.find(path, "sampler_weights")
      self._weights[session] = (saved.weights, path)
    else:
      self._check_base(body.need("base_model", str))
      self._weights[session] = (BASE, None)
    return {"type": "create_sampling_session", "sampling_session_id": session}

  def sample(self, body: Fields) -> dict[str, Any]:
    """Begins sampling."""
    session, seq_id = body.need("sampling_session_id", str), body.need("seq_id", int)
    weights, _ = self.sampler(session)
    asked = sampling.read(body, self.served.chat, self.served.max_context)
    request_id = f"{session}:{seq_id}"
    if self.futures.open(request_id, "asample"):
      served = self.served
      work = lambda: sampling.samples(served.sampler, weights, asked, served.chat)
      self.futures.start(request_id, work)
    ids = [f"{request_id}:{i}" for i in range(asked.num_samples)]
    return {"request_id": request_id, "sample_sequence_ids": ids}

  def model(self, name: str) -> Model:
    """A model by its id.

    Raises:
      Refusal: 404, there is none.
    """
    if name not in self.models:
      raise Refusal(404, f"no model {name!r}; create one, or load a saved one", retry=False)
    return self.models[name]

  def sampler(self, session: str) -> tuple[str, str | None]:
    """(name of the weights, tinker:// path) of a sampling session.

    Raises:
      Refusal: 404, there is none.
    """
    if session not in self._weights:
      raise Refusal(404, f"no sampling session {session!r}; create one", retry=False)
    return self._weights[session]

  def samplers_of(self, session: str) -> list[str]:
    """Ids of the sampling sessions of a session."""
    return [name for name in self._weights if name.startswith(f"{session}:")]

  def _check_base(self, name: str) -> None:
    if name != self.served.base_model:
      raise Refusal(
        400, f"base_model={name!r}; this server has {self.served.base_model!r} alone", retry=False
      )


def _check_adam(config: Mapping[str, Any]) -> None:
  if (kind := config.get("type", "adamw")) != "adamw":
    raise Refusal(400, f"optimizer_config.type={kind!r} is not supported; use adamw", retry=False)


def _texts(body: Fields) -> dict[str, str]:
  """The metadata of a request."""
  return {str(k): str(v) for k, v in body.take("user_metadata", dict, {}).items()}


def _now() -> datetime.datetime:
  return datetime.datetime.now(datetime.UTC)
