"""The routes of the gateway, as an ASGI application (starlette, of the extra `gateway`).

Agents use the routes of their client library with the key of a session: as a bearer token, as
`x-api-key`, or in the path `/s/KEY/v1/...`. Whoever starts agents uses the routes below `/sessions`
with the service key.
"""

from __future__ import annotations

import asyncio
import secrets
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxrl_agents.gateway import control, sse
from jaxrl_agents.gateway.dialects import chat, completions, generate, messages, responses
from jaxrl_agents.gateway.http_requests import MAX_EVENT_BYTES, as_json, body_of, key_of, name_of
from jaxrl_agents.gateway.progress import Progress
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.requests import Refusal
from jaxrl_agents.gateway.sessions import Limits, Served, Session


class Traffic(Protocol):
  """The users behind the sessions of a gateway, see `realtime.traffic.Traffic`."""

  def opened(self, session: Session) -> None:
    """A session was opened: may choose what serves it, and observe it."""

  def opens(self, session: str, key: str) -> bool:
    """Whether a key is the control key of a session that was logged, maybe before a restart."""

  def feedback(self, body: Any) -> dict[str, Any]:
    """Takes an event of a user; returns what became of it."""


def make_app(
  registry: Registry,
  *,
  service_key: str,
  served: Served | None = None,
  limits: Limits = Limits(),
  traffic: Traffic | None = None,
) -> Starlette:
  """The application.

  Args:
    registry: of the sessions.
    service_key: opens the routes of the control plane.
    served: what new sessions are served by; None if none may be opened over HTTP.
    limits: of new sessions, unless they ask for less.
    traffic: of users, who give feedback; None if there are none.

  Raises:
    ValueError: the service key is empty, which a request without a key would fit.
  """
  if not service_key:
    raise ValueError("the service key is empty; choose one, as requests without a key would fit it")
  gateway = _Gateway(registry, service_key, served, limits, traffic)
  dialects = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/messages": messages,
    "/v1/responses": responses,
    "/inference/v1/generate": generate,
  }
  routes = [Route("/healthz", gateway.healthz), Route("/metrics", gateway.metrics)]
  for prefix in ("", "/s/{key}"):
    for path, dialect in dialects.items():
      routes.append(Route(prefix + path, gateway.answers(dialect), methods=["POST"]))
    routes += [
      Route(f"{prefix}/v1/messages/count_tokens", gateway.count_tokens, methods=["POST"]),
      Route(f"{prefix}/v1/models", gateway.models),
      Route(f"{prefix}/v1/models/{{name:path}}", gateway.model),
    ]
  routes += [
    Route("/sessions", gateway.open_session, methods=["POST"]),
    Route("/sessions/{id}", gateway.session),
    Route("/sessions/{id}/rewards", gateway.reward, methods=["POST"]),
    Route("/sessions/{id}/finish", gateway.finish, methods=["POST"]),
    Route("/sessions/{id}/trajectory", gateway.trajectory),
    Route("/feedback", gateway.feedback, methods=["POST"]),
  ]
  known = ", ".join(dialects)
  handlers = {status: _unrouted(status, known) for status in (404, 405)}
  return Starlette(routes=routes, exception_handlers=handlers)


Handler = Callable[[HttpRequest], Awaitable[Response]]


def _unrouted(status: int, known: str) -> Callable[[HttpRequest, Exception], Awaitable[Response]]:
  """The handler of requests that no route takes: client libraries add a path to their base URL, and
  it depends on the library whether that begins with /v1.
  """

  async def handler(http: HttpRequest, _: Exception) -> Response:
    # The path is not repeated, as it may hold a key.
    wrong = f"there is no {http.method} of this path" if status == 405 else "there is no such path"
    text = (
      f"{wrong}; replies come from a POST to {known}: the base URL of openai ends with /v1, that "
      "of anthropic does not"
    )
    return _refused(http, Refusal(status, text, code="unknown_route", retry=False))

  return handler


def _guarded(handler: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
  """Refusals become replies in the dialect of the route."""

  async def call(self: Any, http: HttpRequest, *arguments: Any) -> Response:
    try:
      return await handler(self, http, *arguments)
    except Refusal as refusal:
      return _refused(http, refusal)
    except ClientDisconnect:
      return PlainTextResponse("", 499)

  return call


class _Gateway:
  """The handlers of the routes, and what they share."""

  def __init__(
    self,
    registry: Registry,
    key: str,
    served: Served | None,
    limits: Limits,
    traffic: Traffic | None,
  ):
    self._registry, self._key, self._served, self._limits = registry, key, served, limits
    self._traffic = traffic

  def answers(self, dialect: Any) -> Handler:
    """The handler of the requests for replies in one dialect."""

    async def handler(http: HttpRequest) -> Response:
      return await self.answer(http, dialect)

    return handler

  @_guarded
  async def answer(self, http: HttpRequest, dialect: Any) -> Response:
    """Samples and replies in a dialect, as one body or as a stream."""
    session = self._session_of(http)
    raw = await body_of(http)
    body = as_json(raw)
    asked = dialect.parse(body, session.served.chat)
    name, digest, repeated = name_of(http, raw, body)
    progress = Progress(session.served.chat, asked.request) if asked.grows else None
    task = session.begin(asked.request, name, digest=digest, repeated=repeated, progress=progress)
    head = {"x-session-id": session.id}
    if ignored := session.ignored(asked.request):
      fields = ", ".join(ignored)
      head["x-fields-without-effect"] = urllib.parse.quote(fields, safe=" ,.[]")
    if not asked.stream:
      replies = await asyncio.shield(task)
      response = JSONResponse(dialect.body_of(asked, replies), headers=head)
      if not await http.is_disconnected():
        session.delivered(replies)
      return response
    await sse.begun(task, progress)
    events = dialect.Stream(asked)
    refused = lambda problem: _refused_stream(http, events, problem)
    content = sse.stream(task, progress, events, refused, session.delivered)
    head["cache-control"] = "no-cache"
    return StreamingResponse(content, media_type="text/event-stream", headers=head)

  @_guarded
  async def count_tokens(self, http: HttpRequest) -> Response:
    """The exact number of tokens of a prompt."""
    session = self._session_of(http)
    asked = messages.counted(as_json(await body_of(http)))
    return JSONResponse({"input_tokens": len(session.prompt(asked.request))})

  @_guarded
  async def models(self, http: HttpRequest) -> Response:
    """The policy that is served."""
    model = control.model(self._session_of(http).served)
    return JSONResponse({"object": "list", "data": [model], "models": [model]})

  @_guarded
  async def model(self, http: HttpRequest) -> Response:
    """The policy, by whatever name it is asked for."""
    served = self._session_of(http).served
    return JSONResponse(control.model(served) | {"id": http.path_params["name"]})

  async def healthz(self, http: HttpRequest) -> Response:
    """Whether the gateway answers."""
    return PlainTextResponse("ok")

  @_guarded
  async def metrics(self, http: HttpRequest) -> Response:
    """Counters in the text format of Prometheus."""
    self._check_service_key(http)
    return PlainTextResponse(control.metrics(self._registry))

  @_guarded
  async def open_session(self, http: HttpRequest) -> Response:
    """Opens a session."""
    self._check_service_key(http)
    if self._served is None:
      raise Refusal(403, "this gateway is of a training run, which opens its sessions itself")
    opened = control.opened(as_json(await body_of(http)), self._served, self._limits)
    if self._traffic:
      control.check_watched(opened, self._served)
      self._traffic.opened(opened)
    self._registry.add(opened)
    base_url = str(http.base_url).rstrip("/")
    return JSONResponse(
      {
        "session_id": opened.id,
        "api_key": opened.key,
        "control_key": opened.control_key,
        "base_url": f"{base_url}/v1",
        "anthropic_base_url": base_url,
      }
    )

  @_guarded
  async def session(self, http: HttpRequest) -> Response:
    """The counters of a session."""
    return JSONResponse(self._controlled(http).counters())

  @_guarded
  async def reward(self, http: HttpRequest) -> Response:
    """Attaches parts of the reward."""
    session = self._controlled(http)
    return JSONResponse(control.rewarded(session, as_json(await body_of(http))))

  @_guarded
  async def finish(self, http: HttpRequest) -> Response:
    """Ends a session."""
    session = self._controlled(http)
    await control.finished(session, as_json(await body_of(http)))
    return JSONResponse(session.counters())

  @_guarded
  async def trajectory(self, http: HttpRequest) -> Response:
    """What a finished session left."""
    return JSONResponse(control.trajectory(self._controlled(http)))

  @_guarded
  async def feedback(self, http: HttpRequest) -> Response:
    """Takes an event of a user, for whoever has the service key or the control key of the session
    that it names."""
    body = as_json(await body_of(http, MAX_EVENT_BYTES))
    session_id = body.get("session", "") if isinstance(body, dict) else ""
    session_id = session_id if isinstance(session_id, str) else ""
    if self._traffic is None or not self._traffic.opens(session_id, key_of(http)):
      self._check_control(http, session_id)
    if self._traffic is None:
      raise Refusal(404, "this gateway logs no traffic of users and takes no feedback")
    return JSONResponse(self._traffic.feedback(body))

  def _session_of(self, http: HttpRequest) -> Session:
    """The session of a request: of its key, or with the service key the one that X-Session-ID
    names, else one of its own that nothing is kept of."""
    key = http.path_params.get("key") or key_of(http)
    if session := self._registry.of_key(key):
      return session
    if not (self._served and secrets.compare_digest(key.encode(), self._key.encode())):
      raise Refusal(
        401, "the key opens no session; send the api_key of one", code="invalid_api_key"
      )
    name = http.headers.get("x-session-id", "")
    if not name:
      return Session(self._served, self._limits)
    control.check_id(name)
    if not self._registry.has(name):
      self._registry.add(Session(self._served, self._limits, id=name))
    return self._registry.of_id(name)

  def _controlled(self, http: HttpRequest) -> Session:
    """The session in the path, for whoever has the service key or its own reward key."""
    session_id = http.path_params["id"]
    self._check_control(http, session_id)
    return self._registry.of_id(session_id)

  def _check_control(self, http: HttpRequest, session_id: str) -> None:
    if self._registry.has(session_id):
      key = self._registry.of_id(session_id).control_key
      if secrets.compare_digest(key_of(http).encode(), key.encode()):
        return
    self._check_service_key(http)

  def _check_service_key(self, http: HttpRequest) -> None:
    if not secrets.compare_digest(key_of(http).encode(), self._key.encode()):
      raise Refusal(401, "this route needs the service key", code="invalid_api_key")


def _error_body(http: HttpRequest, refusal: Refusal) -> dict[str, Any]:
  kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
  kind = kinds.get(refusal.status, "rate_limit_error" if refusal.status == 429 else "api_error")
  if "/messages" in http.url.path:
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}
  error = {
    "message": refusal.message,
    "type": kind,
    "param": refusal.param or None,
    "code": refusal.code or None,
  }
  return {"error": error}


def _refused(http: HttpRequest, refusal: Refusal) -> Response:
  return JSONResponse(_error_body(http, refusal), refusal.status, headers=refusal.headers)


def _refused_stream(http: HttpRequest, events: sse.Stream, refusal: Refusal) -> Iterable[sse.Event]:
  """The events of a refusal that comes after its stream has begun."""
  error = _error_body(http, refusal)
  return (
    events.failed(error["error"]) if isinstance(events, responses.Stream) else [("error", error)]
  )
