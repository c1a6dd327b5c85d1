"""The routes of Tinker's API, as an ASGI application (starlette, of the extra `gateway`).

Every route needs the key of the server in `X-API-Key`, with "tml-" before it, as the client library
demands. Requests that take time answer with a `request_id`; `retrieve_future` has the result.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from jaxrl_agents.gateway.http_requests import as_json, body_of, key_of
from jaxrl_agents.gateway.requests import Fields, Refusal
from jaxrl_agents.gateway.tinker import messages
from jaxrl_agents.gateway.tinker.checkpoints import path_of
from jaxrl_agents.gateway.tinker.service import Model, Service

PREFIX = "/api/v1"
KEY_PREFIX = "tml-"

POLL_S = 20.0
"""Seconds that `retrieve_future` waits for a result; the client library allows 45."""

CLIENT_CONFIG = {
  "pjwt_auth_enabled": False,
  "use_pyqwest_transport": False,
  "parallel_fwdbwd_chunks": True,
  "proto_compress_fwdbwd": False,
  "fwdbwd_max_chunk_len": 1_024,
  "sample_use_retrieve_futures": False,
  "custom_loss_server_side": False,
  "sample_join_sampling_session": False,
}
"""How the client library is to speak; whatever is left out has its default."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


def make_app(service: Service, *, key: str) -> Starlette:
  """The application.

  Args:
    service: answers.
    key: of the server, without "tml-".
  """
  routes = _Routes(service, key)
  post = {
    "client/config": lambda body: CLIENT_CONFIG,
    "client/dynamic_config": lambda body: {},
    "session_heartbeat": lambda body: {"type": "session_heartbeat"},
    "telemetry": lambda body: {"status": "accepted"},
    "create_session": service.create_session,
    "create_model": service.create_model,
    "get_info": routes.info,
    "optim_step": service.optim_step,
    "save_weights": service.save_weights,
    "load_weights": service.load_weights,
    "save_weights_for_sampler": service.save_weights_for_sampler,
    "create_sampling_session": service.create_sampling_session,
    "asample": service.sample,
    "weights_info": routes.weights_info,
    "sessions/{session}/finish": lambda body: {},
  }
  get = {
    "get_server_capabilities": routes.capabilities,
    "training_runs": routes.training_runs,
    "training_runs/{model}": routes.training_run,
    "training_runs/{model}/checkpoints": routes.checkpoints,
    "checkpoints": routes.checkpoints,
    "sessions": routes.sessions,
    "sessions/{session}": routes.session,
    "samplers/{session}": routes.sampler,
  }
  deleted = "training_runs/{model}/checkpoints/{checkpoint:path}"
  return Starlette(
    routes=[
      Route(f"{PREFIX}/healthz", lambda http: JSONResponse({"status": "ok"})),
      Route(f"{PREFIX}/forward_backward", routes.forward_backward, methods=["POST"]),
      Route(f"{PREFIX}/retrieve_future", routes.retrieve_future, methods=["POST"]),
      Route(f"{PREFIX}/{deleted}", routes.asked(routes.delete), methods=["DELETE"]),
      *(Route(f"{PREFIX}/{p}", routes.posted(f), methods=["POST"]) for p, f in post.items()),
      *(Route(f"{PREFIX}/{p}", routes.asked(f)) for p, f in get.items()),
    ]
  )


class _Routes:
  """The handlers of the routes, and what they share."""

  def __init__(self, service: Service, key: str):
    self._service, self._key = service, key

  def posted(self, answer: Callable[[Fields], Any]) -> Handler:
    """The handler of a route that takes JSON."""

    async def handle(http: HttpRequest) -> Response:
      return JSONResponse(answer(Fields(as_json(await body_of(http)))))

    return self._guarded(handle)

  def asked(self, answer: Callable[[HttpRequest], Any]) -> Handler:
    """The handler of a route without a body."""

    async def handle(http: HttpRequest) -> Response:
      return JSONResponse(answer(http))

    return self._guarded(handle)

  def _guarded(self, handle: Handler) -> Handler:
    """Checks the key; refusals become replies."""

    async def call(http: HttpRequest) -> Response:
      try:
        if not secrets.compare_digest(key_of(http).encode(), f"{KEY_PREFIX}{self._key}".encode()):
          raise Refusal(
            401, f"the key is wrong; set TINKER_API_KEY to {KEY_PREFIX}, then the server's key"
          )
        return await handle(http)
      except Refusal as refusal:
        return JSONResponse({"detail": refusal.message}, refusal.status, headers=refusal.headers)
      except ClientDisconnect:
        return PlainTextResponse("", 499)

    return call

  async def forward_backward(self, http: HttpRequest) -> Response:
    """Queues a request in Tinker's binary form."""

    async def handle(http: HttpRequest) -> Response:
      if encoding := http.headers.get("content-encoding"):
        raise Refusal(415, f"the body is {encoding}; send it as it is", retry=False)
      try:
        request = messages.read_forward_backward(await body_of(http))
      except ValueError as error:
        raise Refusal(400, f"the body is no ForwardBackwardRequest: {error}", retry=False) from None
      return JSONResponse(self._service.forward_backward(request))

    return await self._guarded(handle)(http)

  async def retrieve_future(self, http: HttpRequest) -> Response:
    """The result of a request, or 408 if there is none within POLL_S."""

    async def handle(http: HttpRequest) -> Response:
      request_id = Fields(as_json(await body_of(http))).need("request_id", str)
      result = await self._service.futures.wait(request_id, POLL_S)
      if isinstance(result, bytes):
        return Response(result, media_type="application/x-protobuf")
      if result is not None:
        return JSONResponse(result)
      model = self._service.models.get(request_id.rpartition(":")[0])
      reason = model.requests.waits_for() if model else ""
      pending = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
      return JSONResponse(pending | {"queue_state_reason": reason or None}, 408)

    return await self._guarded(handle)(http)

  def info(self, body: Fields) -> dict[str, Any]:
    """Name, tokenizer and adapters of a model."""
    model, served = self._service.model(body.need("model_id", str)), self._service.served
    data = {"model_name": served.base_model, "tokenizer_id": served.tokenizer}
    return {
      "type": "get_info",
      "model_id": model.id,
      "model_data": data,
      "model_name": served.base_model,
    } | self._lora(model.lora.rank)

  def weights_info(self, body: Fields) -> dict[str, Any]:
    """What must be known to load a checkpoint."""
    lora = self._service.served.checkpoints.find(body.need("tinker_path", str)).lora
    adapted = {"train_unembed": False, "train_mlp": lora.train_mlp, "train_attn": lora.train_attn}
    return {"base_model": self._service.served.base_model} | self._lora(lora.rank) | adapted

  def _lora(self, rank: int) -> dict[str, Any]:
    return {"is_lora": rank > 0, "lora_rank": rank or None}

  def capabilities(self, http: HttpRequest) -> dict[str, Any]:
    """The policy that is served."""
    served = self._service.served
    model = {"model_name": served.base_model, "max_context_length": served.max_context}
    return {"supported_models": [model | {"trainable": True, "sampleable": True}]}

  def training_runs(self, http: HttpRequest) -> dict[str, Any]:
    """All models since the server began."""
    runs = [self._run(model) for model in self._service.models.values()]
    cursor = {"offset": 0, "limit": len(runs), "total_count": len(runs)}
    return {"training_runs": runs, "cursor": cursor}

  def training_run(self, http: HttpRequest) -> dict[str, Any]:
    """One model."""
    return self._run(self._service.model(http.path_params["model"]))

  def _run(self, model: Model) -> dict[str, Any]:
    saved = self._service.served.checkpoints.all(model.id)
    last = lambda kind: next((c.describe() for c in reversed(saved) if f"/{kind}/" in c.path), None)
    return {
      "training_run_id": model.id,
      "base_model": self._service.served.base_model,
      "model_owner": "",
      "last_request_time": model.asked.isoformat(),
      "last_checkpoint": last("weights"),
      "last_sampler_checkpoint": last("sampler_weights"),
      "user_metadata": dict(model.user_metadata),
    } | self._lora(model.lora.rank)

  def checkpoints(self, http: HttpRequest) -> dict[str, Any]:
    """The checkpoints of a model, or of all."""
    found = self._service.served.checkpoints.all(http.path_params.get("model", ""))
    return {"checkpoints": [checkpoint.describe() for checkpoint in found]}

  def delete(self, http: HttpRequest) -> None:
    """Deletes a checkpoint."""
    kind, _, name = http.path_params["checkpoint"].partition("/")
    self._service.served.checkpoints.remove(path_of(http.path_params["model"], kind, name))

  def sessions(self, http: HttpRequest) -> dict[str, Any]:
    """All sessions since the server began."""
    return {"sessions": list(self._service.sessions)}

  def session(self, http: HttpRequest) -> dict[str, Any]:
    """The models and samplers of a session."""
    session = http.path_params["session"]
    if session not in self._service.sessions:
      raise Refusal(404, f"no session {session!r}", retry=False)
    models = [m.id for m in self._service.models.values() if m.session == session]
    samplers = self._service.samplers_of(session)
    return {"training_run_ids": models, "sampler_ids": samplers} | dict(
      self._service.sessions[session]
    )

  def sampler(self, http: HttpRequest) -> dict[str, Any]:
    """What a sampling session samples from."""
    session = http.path_params["session"]
    _, path = self._service.sampler(session)
    base = self._service.served.base_model
    return {"sampler_id": session, "base_model": base, "model_path": path}
