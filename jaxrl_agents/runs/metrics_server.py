"""Serves the newest numbers of a run to Prometheus: GET /metrics."""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import threading
from collections.abc import Iterator

from jaxrl_agents.viewer import live, prometheus

_TIMEOUT_S = 10.0


@contextlib.contextmanager
def serving(host: str, port: int, workdir: pathlib.Path) -> Iterator[None]:
  """Answers in a thread while the context lasts; not at all if `port` is 0.

  Raises:
    ValueError: another program has the port, or this machine has no such address.
  """
  if not port:
    yield
    return
  try:
    server = _Server((host, port), _handler(workdir))
  except OSError as error:
    raise ValueError(
      f"monitor.host={host} with monitor.port={port} cannot be used: {error.strerror}; name another"
    ) from None
  thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
  thread.start()
  try:
    yield
  finally:
    server.shutdown()
    server.server_close()
    thread.join(_TIMEOUT_S)


class _Server(http.server.ThreadingHTTPServer):
  daemon_threads = True
  block_on_close = False


def _handler(workdir: pathlib.Path) -> type[http.server.BaseHTTPRequestHandler]:
  class Handler(http.server.BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
      if self.path.partition("?")[0] != "/metrics":
        self.send_error(404, "the numbers are at /metrics")
        return
      content = prometheus.text(live.read(workdir)).encode()
      self.send_response(200)
      self.send_header("Content-Type", prometheus.CONTENT_TYPE)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
      """Says nothing on the standard error."""

  return Handler
