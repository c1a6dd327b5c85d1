"""A relay that breaks connections between a client and the gateway, for the programs beside it."""

import contextlib
import http.client
import http.server
import threading
import urllib.parse

OWN_HEADERS = ("connection", "content-length", "date", "host", "server", "transfer-encoding")


class Relay:
  """Passes requests on to the gateway.

  Attributes:
    url: the base URL for clients.
    faults: of the next requests, in order: "" for none; "lost": the connection breaks while the
      reply is sampled; "cut": in the middle of the reply, which the relay has read in whole.
    repetitions: of each request, whether its client marked it as a repetition.
  """

  def __init__(self, base_url):
    self.faults, self.repetitions = [], []
    address = urllib.parse.urlsplit(base_url)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, address.netloc))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    self.url = f"http://127.0.0.1:{server.server_address[1]}{address.path}"


def _handler(relay, gateway):
  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      fault = relay.faults.pop(0) if relay.faults else ""
      relay.repetitions.append(self.headers.get("x-stainless-retry-count", "0") != "0")
      body = self.rfile.read(int(self.headers["content-length"]))
      connection = http.client.HTTPConnection(gateway)
      connection.request("POST", self.path, body, _passed(self.headers))
      self.close_connection = True
      if fault == "lost":
        return connection.close()
      reply = connection.getresponse()
      content = reply.read()
      self.send_response(reply.status)
      for name, value in _passed(reply.headers).items():
        self.send_header(name, value)
      self.send_header("content-length", str(len(content)))
      self.end_headers()
      self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)

    def log_message(self, *arguments):
      pass

  return Handler


def _passed(headers):
  return {name: value for name, value in headers.items() if name.lower() not in OWN_HEADERS}


@contextlib.contextmanager
def fails(kind, text):
  """Checks that the block raises an error of this kind that says `text`."""
  try:
    yield
  except kind as error:
    assert text in str(error), f"{type(error).__name__}: {error}"
  else:
    raise AssertionError(f"this did not raise {kind.__name__}")
